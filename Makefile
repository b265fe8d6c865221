# Everything happens in .venv. `make` alone lists what there is.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PYTEST_ARGS ?=
WORKERS ?= 2
INPUTS ?= 100000
SEED ?= 1

BIN := .venv/bin
READY := .venv/.bridle-ready
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format docs fuzz agents verify-models bench setup system browser clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: PYTHON=$(PYTHON)  TORCH=$(TORCH)  TORCH_INDEX=$(TORCH_INDEX)  WORKERS=$(WORKERS)  PYTEST_ARGS=$(PYTEST_ARGS)"

demo: setup system ## a real agent fixes real bugs; graded, checked, audited
	@$(BIN)/python examples/calculator/demo.py

test: setup system browser ## the whole test suite; counts go to build/test.json
	@$(PYTEST) --counts=build/test.json $(PYTEST_ARGS)

test-fast: setup ## what is quick and installs nothing
	@$(PYTEST) -m "not slow and not agents" --counts=build/test-fast.json $(PYTEST_ARGS)

lint: setup ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff format and sort
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: setup ## hold the documents to the code
	@$(BIN)/python -m pytest tests/test_docs.py $(PYTEST_ARGS)

fuzz: setup ## damaged requests against every protocol; INPUTS=100000 SEED=1
	@$(BIN)/python -m bridle.testing.fuzz --inputs $(INPUTS) --seed $(SEED) --workers $(WORKERS) --out build/fuzz.json

agents: setup system ## every agent that can be had here, every scenario and fault, live
	@$(BIN)/bridle doctor --agents --scenario all --fault all

verify-models: setup ## every model family, proved or refused; details go to build/verify-models.json
	@$(BIN)/python -m bridle.testing.verify_models --out build/verify-models.json

bench: setup ## every program in benchmarks/
	@set -e; for program in benchmarks/*.py; do echo "== $$program"; $(BIN)/python "$$program"; done

setup: $(READY) ## make .venv, or bring it up to date with pyproject.toml

# torch first: what depends on it would otherwise choose its own build.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Bridle needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo none). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up .venv (once; torch is the large part)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,fast,test]'
	@touch $@

# Bubblewrap is the one system package that is wanted; without it sandboxes fall back to `local`, which isolates nothing.
system:
	@if command -v bwrap >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing bubblewrap"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null 2>&1 \
			|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends bubblewrap; } >/dev/null \
			|| echo "bubblewrap could not be installed: going on with the local sandbox, which isolates nothing"; \
	else \
		echo "bubblewrap is missing: going on with the local sandbox, which isolates nothing (as root: apt-get install bubblewrap)"; \
	fi

# The test that looks at a page of `bridle view` is left out where there is no browser.
browser: ## chromium, for the test that looks at a page
	@if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 \
			|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } >/dev/null \
			|| echo "chromium could not be installed: the test that needs it is left out"; \
	fi

clean: ## remove what was built, .venv included
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
