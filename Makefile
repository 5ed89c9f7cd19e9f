# Everything a person types; `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORE := $(wildcard nexuskv_core/*.pyx nexuskv_core/*.pxd nexuskv_core/arena/*.[ch])
T ?= tests
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup up browser test faults lint fmt types openapi migrate bench bench-worker bench-core bench-decisions bench-planner evaluate core-check lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv, install the locked packages, compile the index

$(STAMP): requirements-dev.lock pyproject.toml $(CORE)
	@$(PYTHON) -c 'import sys; sys.exit("NexusKV needs Python 3.11 or newer, and `$(PYTHON)` is " + sys.version.split()[0] + ". Name another: make $(MAKECMDGOALS) PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@command -v cc >/dev/null || { echo "The index is compiled: install a C compiler (on Debian: apt-get install gcc)"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(None if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) else "The index is compiled against Python.h, which $(PYTHON) lacks (on Debian: apt-get install python3-dev)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Python cannot create virtual environments here (on Debian: apt-get install python3-venv)"; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

up: setup ## start everything on this machine in the foreground: Postgres, migrations, API, worker
	@exec $(BIN)/nexuskv up $(ARGS)

browser: ## install the browser of the console's tests (Debian, as root)
	@command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

test: setup ## run the tests (T=path for one file)
	$(BIN)/python -m $(if $(filter tests,$(T)),tests.lanes,pytest $(T)) $(ARGS)

faults: setup ## kill and cut what the history depends on (FAULT_ROUNDS=20 for more of it)
	$(BIN)/python -m pytest tests/faults $(ARGS)

lint: setup ## ruff, import rules, Cython lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint nexuskv_core

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## mypy strict, and the compiled module's stub against the module
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest nexuskv_core --allowlist nexuskv_core/stubtest.allow

core-check: setup ## the core's tests under AddressSanitizer, and its line coverage
	PYTHON=$(CURDIR)/$(BIN)/python nexuskv_core/check.sh

openapi: setup ## write openapi/v1.json and the JSON Schemas
	$(BIN)/nexuskv openapi --out openapi

migrate: setup ## bring the database of NEXUSKV_DATABASE_URL to the newest schema
	$(BIN)/nexuskv migrate

bench: setup ## run the service benchmark; writes .bench/service.json
	$(BIN)/python -m benchmarks.service $(ARGS)

bench-worker: setup ## run the worker benchmark; writes .bench/worker.json
	$(BIN)/python -m benchmarks.worker $(ARGS)

bench-planner: setup ## time plans; writes .bench/planner.json
	$(BIN)/python -m benchmarks.planner $(ARGS)

evaluate: setup ## the planner against others, simulated (TRACE=file); writes .bench/evaluate.json
	$(BIN)/python -u -m benchmarks.evaluate $(if $(TRACE),--trace $(TRACE)) $(ARGS)

bench-core: setup ## run the index beside its peers; writes .bench/core.json
	$(BIN)/python -u -m benchmarks.core $(ARGS)

bench-decisions: setup ## run the decision history's benchmark; writes .bench/decisions.json
	$(BIN)/python -u -m benchmarks.decisions $(ARGS)

lock: ## resolve the dependencies again (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet pyproject.toml --extra embedded -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet pyproject.toml --extra embedded --group dev -o requirements-dev.lock

clean: ## remove the environment and what was built
	rm -rf $(VENV) build .bench *.egg-info .mypy_cache .ruff_cache .pytest_cache nexuskv_core/*.c nexuskv_core/*.so
