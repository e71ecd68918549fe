# `make demo` and `make test` are all a newcomer needs; both install what they use into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NATIVE := $(wildcard src/mansard/native/*) CMakeLists.txt pyproject.toml

.PHONY: demo serve test check bench docs clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(NATIVE) constraints.txt | $(BIN)/python
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## serve the embedded model, ask it one question, print TTFT, TPOT and tokens/s
	$(BIN)/mansard demo

serve: $(VENV)/.installed  ## serve the embedded model on http://127.0.0.1:8000
	$(BIN)/mansard serve

test: $(VENV)/.installed-dev  ## run the tests
	$(BIN)/python -m pytest -q

check: $(VENV)/.installed-dev  ## lint, formatting, types, generated documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf build dist $(VENV)/.installed $(VENV)/.installed-dev
