# h3farm: `make help` lists the targets.

# The first interpreter that is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
ENGINE_SOURCES := $(wildcard csrc/*.c csrc/*.h) engine/_build.py setup.py
TYPES := build/mypy/h3farm

# The farm of `make demo` and `make run` knows the user's models and the demo model of this repository.
export H3FARM_HOME ?= $(HOME)/h3farm
export H3FARM_MODELS := $(or $(H3FARM_MODELS),$(H3FARM_HOME)/models):$(CURDIR)/models

.DEFAULT_GOAL := help
.PHONY: help demo test run setup setup-tests browser quick lint types test-fast test-c test-asan test-tsan \
	test-neon e2e score bench reference clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## set up everything, start the farm, render a sample, print where it is (KEEP=1: leave the farm running)
	@$(BIN)/python tools/demo.py $(if $(KEEP),--keep)

test: setup-tests browser test-c test-asan quick ## set up everything the tests need and run them all
	$(BIN)/pytest -m "slow or e2e"

run: setup ## start the farm and keep it running (Ctrl-C ends it)
	@exec $(BIN)/h3farm run

setup: $(VENV)/installed $(VENV)/engine-built ## environment and engine only

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "h3farm needs Python 3.11 or newer: install it, or say PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) has no venv module (Debian: apt install python3-venv)"; exit 1; }

$(VENV)/installed: pyproject.toml setup.py | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $(VENV)/engine-built $@

$(VENV)/engine-built: $(ENGINE_SOURCES) | $(VENV)/installed
	$(BIN)/python engine/_build.py
	@touch $@

setup-tests: setup $(VENV)/installed-tests $(TYPES)

$(VENV)/installed-tests: pyproject.toml $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# mypy finds a package by its folder's name; ours are mapped to other names in pyproject.toml.
$(TYPES):
	@mkdir -p $@
	@for part in engine worker web; do ln -sfn ../../../$$part $@/$$part; done

browser: setup-tests
	@$(BIN)/python tools/browser.py

quick: setup-tests lint types test-fast ## the edit loop: lint, types, fast tests, in seconds

lint: setup-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-tests
	$(BIN)/mypy

test-fast: setup-tests
	$(BIN)/pytest -m "not slow and not e2e"

test-c: ## the C tests
	$(MAKE) -C csrc test

test-asan: ## the C tests under the address and undefined-behaviour sanitizers
	$(MAKE) -C csrc asan

test-tsan: ## the C tests under the thread sanitizer
	$(MAKE) -C csrc tsan

test-neon: ## the C tests built for arm64 and run under emulation (needs aarch64-linux-gnu-gcc and qemu)
	$(MAKE) -C csrc neon

e2e: setup-tests browser ## the tests in a real browser
	$(BIN)/pytest -m e2e

score: setup ## the demo model's semantic score through the C engine (score.json)
	$(BIN)/python -m tools.demo_model.score --out score.json

bench: setup ## measure, as ratios, against limits; exits non-zero when one is missed
	@# A BLAS kernel forced from outside would slow the peer and flatter us.
	@env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python tools/bench.py

reference: setup ## write docs/spec.md and docs/commands.md again
	$(BIN)/python tools/reference.py

clean: ## remove everything that was built or installed here (never outputs or models)
	rm -rf $(VENV) build *.egg-info engine/*.so engine/_h3f.c
