"""A model as a short list of typed ops, read by the native executor, the torch executor and the cost model."""
