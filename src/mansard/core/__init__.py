"""The control plane: decides what each step computes; touches no tensor, clock or random number."""
