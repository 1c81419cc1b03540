# Every target works from a bare clone and can be repeated. `make run` is the main job, `make test` the tests.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
DATA ?= data
PORT ?= 8080
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup run test test-compiled check bench bench-state bench-faults bench-choice chaos wheel docs lock clean help

help: ## What the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.all ## Everything that running, testing and checking needs, in .venv

run: $(VENV)/.run ## Serve the built-in models on http://127.0.0.1:8080 (PORT=, DATA=)
	@$(BIN)/sits models pull smollm2-135m --data $(DATA)
	@exec $(BIN)/sits serve --data $(DATA) --port $(PORT)

test: $(VENV)/.all ## All tests
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

test-compiled: $(VENV)/.all ## The tests of the hot path over the compiled wheel (needs a C compiler)
	rm -rf .cache/compiled && SITS_COMPILE=1 $(BIN)/pip install -q --no-deps --target .cache/compiled .
	PYTHONPATH=$(CURDIR)/.cache/compiled $(BIN)/pytest -n 2 --dist worksteal tests/test_turn.py tests/dialects tests/engines/remote \
		tests/gateway tests/hostile tests/observe tests/routing tests/security $(ARGS)

check: $(VENV)/.all ## Format, lint, types, layers, generated pages
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sits docs --check

bench: $(VENV)/.all ## SITS beside its peers; writes docs/performance.md (about ten minutes)
	@command -v nginx >/dev/null && command -v wrk >/dev/null || (apt-get update -qq && apt-get install -y -qq nginx-light wrk)
	$(BIN)/sits bench gateway --setup
	$(BIN)/sits bench gateway --json --out docs

bench-state: $(VENV)/.all ## Caches, crashes, clusters, and ten minutes of soak (as root, for network namespaces)
	$(BIN)/sits bench cache --json --out docs
	$(BIN)/sits bench crash --json --out docs
	$(BIN)/sits bench state --json --out docs
	$(BIN)/sits bench soak --json --out docs

bench-faults: $(VENV)/.all ## Faults, switches, overload, substitutes; writes their pages (about five minutes)
	$(BIN)/sits bench faults --json --out docs
	$(BIN)/sits bench switch --json --out docs
	$(BIN)/sits bench overload --json --out docs
	$(BIN)/sits bench substitutes --json --out docs

bench-choice: $(VENV)/.all ## Intent, complexity, decisions, replay, registry, units, routing; writes their pages (about an hour)
	for name in intent decision registry units; do $(BIN)/sits bench $$name --setup || exit; done
	@failed=; for name in intent complexity decision replay registry units routing; do \
		$(BIN)/sits bench $$name --json --out docs || failed="$$failed $$name"; done; \
	test -z "$$failed" || { echo "a bound does not hold in:$$failed"; exit 1; }

chaos: $(VENV)/.all ## Chaos experiments; writes docs/chaos-report.md (about four minutes; root for namespaces)
	$(BIN)/sits chaos run chaos --report docs/chaos-report.md

wheel: $(VENV)/bin/pip ## dist/*.whl with the hot path compiled (needs a C compiler)
	SITS_COMPILE=1 $(BIN)/pip wheel -q --no-deps -w dist .

docs: $(VENV)/.all ## Write the pages that are generated from the code
	$(BIN)/sits docs

lock: $(VENV)/.all ## Pin what is installed now
	$(BIN)/pip freeze --exclude-editable | grep -vE '^(sits|uv)\b' > requirements.lock

clean: ## Remove what the other targets made (not the data folder)
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml requirements.lock | $(VENV)/bin/pip
	$(BIN)/pip install -q -c requirements.lock -e '.[local]'
	@touch $@

$(VENV)/.all: pyproject.toml requirements.lock | $(VENV)/bin/pip
	$(BIN)/pip install -q -c requirements.lock -e '.[local,test,check]'
	@touch $@ $(VENV)/.run
