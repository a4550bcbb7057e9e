# make demo | test | ui | bench    what users type; each is complete by itself
# make docs                        the documents as a site, in site/
# make check                       what a change must pass: format, lint, types, tests
# make test-cluster                the tests that need a scheduler, Slurm or Ray, as far as one is installed
# make test-web                    the web UI: what it lists, starts, cancels and refuses
# make test-wheel                  the package, built and alone in an environment
# make test-slow                   soaks, simulations and every printed command
# make test-all                    all of these but test-oldest
# make test-oldest                 the tests with the oldest versions that pyproject.toml allows, in .venv-oldest
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo docs test test-slow test-all test-web test-wheel test-cluster test-oldest ui bench check lint

PYTHON ?= python3
BIN := .venv/bin
OLDEST := .venv-oldest
INSTALLED := .venv/.installed
WITH_TOOLS := .venv/.with-tools
INSTANCE := .dagster/.initialised
# Of the command lines, dg obeys `telemetry: {enabled: false}` only where DAGSTER_HOME says that there is a dagster.yaml.
demo ui .dagster/.initialised: export DAGSTER_HOME := $(or $(DAGSTER_HOME),$(CURDIR))
DATA := $(if $(TTA_DATA_ROOT),$(TTA_DATA_ROOT),data)

help:
	@grep -E '^# make' Makefile | sed 's/^# //'

demo: $(INSTALLED) $(INSTANCE)  ## the whole road on the embedded benchmark
	@echo "digits_c: images, shards, manifests, source model, 75 cells x 3 experiments, 4 streams, report."
	@$(BIN)/tta-pipeline run digits_c
	@echo; $(BIN)/tta-pipeline leaderboard
	@echo
	@echo "report    $(DATA)/digits_c/report/index.html"
	@echo "database  $(DATA)/metrics.duckdb"
	@echo
	@echo "Next, type one of:"
	@echo "  make ui"
	@echo "  $(BIN)/tta-pipeline compare tent norm"
	@echo "  $(BIN)/tta-pipeline query \"SELECT * FROM corruption_errors WHERE experiment = 'tent' ORDER BY mean_error DESC\""

# Tests start hundreds of processes: without bytecode on disk, each would compile the project and its tests again.
# Three workers for two cores, since servers, browsers and timeouts are waited for. Their files, at most 1 GB at once,
# are in memory if there is room: with a disk, the kernel takes three times as long.
test: $(WITH_TOOLS)
	@if [ "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null; then export TMPDIR=/dev/shm; fi; \
	  PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadscope --no-loadscope-reorder

test-cluster: $(WITH_TOOLS)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m cluster tta_pipeline_tests/extras/cluster

test-web: $(WITH_TOOLS)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m "web and not slow" tta_pipeline_tests/web

test-wheel: $(WITH_TOOLS)
	@$(BIN)/pytest -m wheel tta_pipeline_tests/wheel

test-slow: $(WITH_TOOLS)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n 2 --dist loadscope --no-loadscope-reorder

test-all: lint test test-slow test-web test-wheel test-cluster

# An old library uses what the newest of those below it deprecate: matplotlib 3.9 of pyparsing, as an example.
test-oldest: $(OLDEST)/.installed
	@OMP_NUM_THREADS=1 $(OLDEST)/bin/pytest -W ignore::DeprecationWarning -n 3 --dist loadscope --no-loadscope-reorder

ui: $(INSTALLED) $(INSTANCE)
	@! (: < /dev/tcp/127.0.0.1/3000) 2> /dev/null || { echo "port 3000 is taken (127.0.0.1); expected a free port:" \
	  "stop what listens there, perhaps another 'make ui', or change 3000 in the Makefile" >&2; exit 1; }
	@echo "http://127.0.0.1:3000 (no login: keep it on this machine; from elsewhere use an SSH tunnel)"
	@echo "New to Dagster? docs/concepts.md has five sentences; docs/guides/dagster.md has more."
	@exec $(BIN)/dg dev -w workspace.yaml -h 127.0.0.1 -p 3000

bench: $(WITH_TOOLS)
	@$(BIN)/python -m bench.sharding
	@$(BIN)/python -m bench.loaders
	@$(BIN)/python -m bench.remote
	@$(BIN)/python -m bench.evaluation
	@$(BIN)/python -m bench.training
	@$(BIN)/python -m bench.methods
	@$(BIN)/python -m bench.features
	@$(BIN)/python -m bench.metrics
	@$(BIN)/python -m bench.polling
	@$(BIN)/python -m bench.workers

check: lint test

docs: $(INSTALLED)
	@$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "To read it, with search: $(BIN)/python -m http.server -d site -b 127.0.0.1 8000"

lint: $(WITH_TOOLS)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else \
	  f"found Python {v[0]}.{v[1]}; expected 3.11 to 3.13: make PYTHON=/path/to/python3.12 ...")'
	@echo "Installing into .venv (torch is large: a few minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e .
	@touch $@

$(WITH_TOOLS): $(INSTALLED)
	@$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# By uv, since pip tries version after version of what depends on them, for more than half an hour.
$(OLDEST)/.installed: pyproject.toml constraints.txt tta_pipeline_tests/oldest.py
	@echo "Installing the oldest versions into $(OLDEST) (torch is large: a few minutes)"
	@$(PYTHON) -m venv --clear $(OLDEST)
	@$(OLDEST)/bin/pip install --disable-pip-version-check --quiet uv
	@$(OLDEST)/bin/python tta_pipeline_tests/oldest.py > $(OLDEST)/constraints.txt
	@$(OLDEST)/bin/uv pip install --python $(OLDEST)/bin/python --only-binary :all: --no-binary jsonpath-rw \
	  --constraints $(OLDEST)/constraints.txt -e '.[dev]'
	@touch $@

# Once, before anything runs in parallel: two processes that make the database of a new instance trip over each other.
$(INSTANCE): dagster.yaml $(INSTALLED)
	@mkdir -p .dagster
	@$(BIN)/dagster instance info > .dagster/initialised.log 2>&1 \
	  || { tail -n 1 .dagster/initialised.log >&2; exit 1; }
	@touch $@
