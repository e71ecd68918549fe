"""The simulated executor and the workloads that drive it."""
