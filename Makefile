# Everything a contributor runs. `make` alone prints the table.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all chaos check bench docs format clean
.DELETE_ON_ERROR:

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q tests
# DEBUG=1 make test: the log while the tests run.
ifneq ($(filter-out 0,$(DEBUG)),)
PYTEST += -o log_cli=true -o log_cli_level=DEBUG
endif
# make test ARGS="-k lease -x"
PYTEST += $(ARGS)

help: ## Print this table
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.installed-demo ## See it work: install the small set, run the demo (no server needed)
	@$(BIN)/onward demo

test: .venv/.installed-dev ## The tests with small counts; finds, starts or installs the servers it needs
	ONWARD_TEST_SCALE=0.1 $(PYTEST) -m "not slow and not chaos"

test-all: .venv/.installed-dev ## Every test with full counts, slow and chaos too
	ONWARD_TEST_SCALE=1 $(PYTEST) -m "slow or not slow"

chaos: .venv/.installed-dev ## Only the tests that kill servers and processes
	ONWARD_TEST_SCALE=1 $(PYTEST) -m chaos

check: .venv/.installed-dev ## Lint, format, types (mypy and pyright), import layers; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src $(wildcard tests/typing)
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

bench: .venv/.installed-dev ## The benchmarks (ARGS="..." is handed on)
	$(BIN)/python -m benchmarks $(ARGS)

docs: .venv/.installed-dev ## Write the generated part of the docs: what each queue provider can do
	$(BIN)/python docs/capabilities.py

format: .venv/.installed-dev ## Let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, builds and caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: installed again only when pyproject.toml is newer. The large set contains the small one.
.venv/.installed-demo: pyproject.toml | $(BIN)/python
	@echo "Installing onward and its command line into .venv …" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[cli]'
	@touch $@

.venv/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing onward and the tools of its developers into .venv (a minute or two) …" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/.installed-demo

# Candidates are run, not only looked up: a pyenv shim may exist and still answer "command not found".
$(BIN)/python:
	@new='import sys; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c "$$new" 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "onward needs Python 3.11 or newer; python3 here is: $$(python3 --version 2>&1 | head -n 1)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "$$found cannot make virtual environments: installing python3-venv with apt-get …" >&2; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install python3-venv >/dev/null || exit 1; \
	  else \
	    echo "$$found cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	fi; \
	"$$found" -m venv --clear .venv
