# Needs make and Python 3.11 or newer, the tests a C compiler too; everything else is fetched into .venv and the user's cache folder.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

NODES     ?= 100
ISOCHRONE ?= 1
VOLCANO   ?= 1.14.1
N         ?= 1000000
SEED      ?= 1
export VOLCANO

.DEFAULT_GOAL := help
.PHONY: help demo test check bench stack e2e-full fuzz

help: ## This list
	@grep -E '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' | expand -t 20

demo: $(STAMP) ## Show what Isochrone does, on this terminal
	@$(BIN)/isochrone demo

test: check ## All tests but the longest: unit, and against a real API server and Volcano on loopback (the first run builds them)
	@$(BIN)/python -m e2e.stack build
	@$(BIN)/pytest -n auto --dist loadfile -m "not full" tests; unit=$$?; $(BIN)/pytest -m "not full" e2e && exit $$unit

check: $(STAMP) ## Format, lint, types, import contracts, file length
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pytest -q tests/test_layout.py

bench: $(STAMP) ## Measure; BENCH=gangs runs one of them
	@$(BIN)/python -m e2e.bench $(BENCH)

stack: $(STAMP) ## A cluster on loopback until Ctrl-C; NODES=100 ISOCHRONE=1 VOLCANO=1.14.1
	@NODES=$(NODES) ISOCHRONE=$(ISOCHRONE) exec $(BIN)/python -m e2e.stack up

e2e-full: $(STAMP) ## The tests that are too long for `make test`
	@$(BIN)/python -m e2e.stack build
	@$(BIN)/pytest -m full

fuzz: $(STAMP) ## Damaged topology files into every reader; N=1000000 inputs each, SEED=1
	@$(BIN)/python -m tests.topology.fuzz $(N) $(SEED)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Isochrone needs Python 3.11 or newer, and $(PYTHON) is not: name another one, as in make PYTHON=python3.12 test"; \
	  exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)"; exit 1; }
	@echo "installing what requirements.lock names"
	@$(PIP) install --require-hashes -r requirements.lock
	@echo "installing isochrone"
	@$(PIP) install --no-deps -e .
	@touch $@
