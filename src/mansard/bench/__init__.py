"""Measurement: load generation, metrics, perplexity and reports."""
