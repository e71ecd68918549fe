"""The roofline: prices a program on a hardware, op by op."""
