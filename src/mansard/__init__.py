"""Mansard: run large language models well, and know how close they are to what the hardware allows."""

__version__ = "0.1.0"
