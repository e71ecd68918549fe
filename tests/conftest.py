"""Settings of the whole suite; its folder is on the path, so tests can share `tiny_models`."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
