# Every target sets up what it needs in .venv and works from a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv where it is installed, else pip.
UV := $(shell command -v uv 2>/dev/null)
ifdef UV
  MAKE_VENV = uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
  INSTALL = uv pip install --quiet --python $(BIN)/python
else
  MAKE_VENV = $(PYTHON) -m venv $(VENV)
  INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.DEFAULT_GOAL := help
.PHONY: help demo test soak soak-quorum soak-outbox mutants coverage mutate lint format bench bench-full neighbours docs package clean servers

help: ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; this is `$(PYTHON) --version`. Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(MAKE_VENV)
	@touch $@

# One stamp a set of extras: make demo needs not wait for what make test needs.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.python
	@echo "installing celery-singleton-lock[$*] into $(VENV)"
	@$(INSTALL) -e '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo ## Beats, workers and Redis are killed, and no slot is missed or run twice
	@$(BIN)/python -m example_project.demo

# Most tests wait, for a server, a timer or a lease that runs out, and use a quarter of a core: five for
# two cores. Each has servers of its own: no more than there is work for.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(5 * (os.cpu_count() or 1) // 2, 16))')

test: $(VENV)/.installed-test lint servers ## Lint, then all tests, with every server they need
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

coverage: $(VENV)/.installed-test $(VENV)/.installed-coverage servers ## How much of the package the tests reach, branches and processes included
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadgroup
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutate: $(VENV)/.installed-test $(VENV)/.installed-mutation ## Small changes of what decides: which does no test see?
	$(BIN)/mutmut run
	$(BIN)/mutmut results

MINUTES ?= 5
SEED ?=
STORE ?= redis
BROKER ?= redis
POOL ?= prefork
soak: $(VENV)/.installed-test servers ## Beats, workers, store and broker are hurt for MINUTES, from a SEED; STORE=all for all
	@$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) --store $(STORE) --broker $(BROKER) --pool $(POOL) $(if $(SEED),--seed $(SEED))

mutants: $(VENV)/.installed-test servers ## The product is broken on purpose, in eleven ways, and each must be caught
	@$(BIN)/python -m tests.chaos.mutation

soak-quorum: $(VENV)/.installed-test ## Millions of schedules of the quorum, from a new seed each time
	@$(BIN)/python -m tests.soak_quorum

soak-outbox: $(VENV)/.installed-test servers ## Ten thousand rows while relays are killed at every step, on each database
	@$(BIN)/python -m tests.soak_outbox

servers: ## Install RabbitMQ, MariaDB and Redis where that is allowed; tests say what is missing
	@sh tests/install-servers.sh

lint: $(VENV)/.installed-lint $(VENV)/.installed-test ## Style, types, the rules of the layers, and known weaknesses
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive celery_singleton_lock
	@$(BIN)/python -m tests.audit

format: $(VENV)/.installed-lint ## Put the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

MEASURED := docs/benchmarks
# The pages are filled also when a promise was missed: that is when they are read.
REPORT = status=$$?; $(BIN)/python -m benchmarks.report && exit $$status

bench: $(VENV)/.installed-test $(VENV)/.installed-plots ## Every promised ratio, in five minutes; fails when one is missed anew
	@$(BIN)/python -m benchmarks --json $(MEASURED)/promises.json; $(REPORT)

bench-full: $(VENV)/.installed-test $(VENV)/.installed-neighbours $(VENV)/.installed-plots ## More rounds, others beside ours, how cost grows
	-@$(BIN)/python -m benchmarks.beside --full --json $(MEASURED)/beside.json
	-@$(BIN)/python -m benchmarks.growth --full --json $(MEASURED)/growth.json
	@$(BIN)/python -m benchmarks --full --json $(MEASURED)/promises.json; $(REPORT)

neighbours: $(VENV)/.installed-test $(VENV)/.installed-neighbours $(VENV)/.installed-plots ## What becomes of ours, and of others, when something dies
	@$(BIN)/python -m benchmarks.neighbours --json $(MEASURED)/faults.json; $(REPORT)

docs: $(VENV)/.installed-docs ## The documentation, into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# Into an empty environment, as a user would: what the tests have installed must not help it.
package: $(VENV)/.installed-test ## Build what is released, and try it in an empty environment
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) -m venv --clear dist/.try
	dist/.try/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd dist && .try/bin/celery singleton --help >/dev/null && .try/bin/python -c "import celery_singleton_lock as c; [getattr(c, n) for n in c.__all__]; print('works:', c.__version__)"
	rm -rf dist/.try

clean: ## Remove all that was made
	rm -rf $(VENV) soak-reports mutants .coverage docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
