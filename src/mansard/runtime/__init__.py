"""Running for real: executors, sampling and the reference definition of every op."""
