# Everything a contributor runs. `make` alone prints the table.
.DEFAULT_GOAL := help
# The longest first: two run at a time.
CHECKS := check-pyright check-mypy check-lint check-format check-layers
.PHONY: help demo test test-all chaos mutants floors check house bench docs format clean $(CHECKS)
.DELETE_ON_ERROR:

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# It reports and judges nothing: `make test` prints it at the end.
HOUSE := $(BIN)/python tools/house.py
# The tests start hundreds of processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Most tests wait more than they compute; those of whole processes less so.
SIDE_BY_SIDE := tests/unit tests/conformance tests/sql tests/behaviour tests/stateful tests/sweep -n $(or $(JOBS),6) --dist worksteal
ACCEPTANCE := tests/acceptance -n 3 --dist loadfile
# DEBUG=1 make test: the log while the tests run, one after another.
ifneq ($(filter-out 0,$(DEBUG)),)
PYTEST += -o log_cli=true -o log_cli_level=DEBUG
SIDE_BY_SIDE += -n 0
ACCEPTANCE += -n 0
endif
# make test ARGS="-k lease -x"; 5: none of them was chosen.
# Tests share the machine with each other and with whatever else runs on it: those that failed are tried once more, alone.
# Nothing is hidden by it: both runs are printed, and a defect fails twice.
define run
	@$(PYTEST) $(1) $(ARGS) || case $$? in \
	  5) ;; \
	  1) echo "== What failed is tried once more, alone. If it passes now, it is still worth a look. ==" >&2; \
	     $(PYTEST) $(1) $(ARGS) -n 0 --last-failed --last-failed-no-failures none ;; \
	  *) exit 1 ;; \
	esac
endef

help: ## Print this table
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: .venv/.installed-demo ## See it work: install the small set, run the demo (no server needed)
	@$(BIN)/onward demo

test: export ONWARD_TEST_SCALE = 0.1
test-all chaos: export ONWARD_TEST_SCALE = 1

test: .venv/.installed-dev ## The tests with small counts; finds, starts or installs the servers it needs
	$(call run,$(SIDE_BY_SIDE) -m "not slow and not chaos")
	$(call run,$(ACCEPTANCE) -m "not slow and not chaos")
	$(if $(ARGS),,-@$(HOUSE))

test-all: .venv/.installed-dev ## Every test with full counts, slow and chaos too
	$(call run,$(SIDE_BY_SIDE) -m "not chaos")
	$(call run,$(ACCEPTANCE) -m "not chaos")
	$(call run,tests -m chaos)

chaos: .venv/.installed-dev ## Only the tests that kill servers and processes
	$(call run,tests -m chaos)

mutants: .venv/.installed-dev ## Plant defects and see which test finds each (half an hour; ARGS="words of their names")
	cd tests && ../$(BIN)/python -m mutants $(ARGS)

# Not -W error: old libraries warn of what newer ones will not have any more.
FLOOR_TESTS := tests/unit tests/conformance tests/acceptance/test_cli.py \
  $(addprefix tests/behaviour/test_,drivers.py sessions.py refusals.py secrets.py brokers.py queue_redis.py queue_bullmq.py \
    queue_rabbitmq.py queue_sqs.py) tests/behaviour/flow/test_flow_life.py
FLOOR_TOOLS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis 'moto[server,sqs]>=5.0'

floors: export ONWARD_TEST_SCALE = 0.1
floors: | $(BIN)/python ## Try the lowest versions that pyproject.toml allows, in .floors (ten minutes; needs an index)
	@$(BIN)/python -m venv --clear .floors
	@.floors/bin/python -m pip install -qq --disable-pip-version-check uv
	@.floors/bin/uv pip compile -q pyproject.toml --extra all --resolution lowest-direct -o .floors/floors.txt >/dev/null
	@.floors/bin/uv pip install -q --python .floors/bin/python -r .floors/floors.txt $(FLOOR_TOOLS)
	@.floors/bin/uv pip install -q --python .floors/bin/python --no-deps -e .
	.floors/bin/python -m pytest -q -o filterwarnings= -m "not slow and not chaos" $(or $(ARGS),$(FLOOR_TESTS))

check: .venv/.installed-dev ## Lint, format, types (mypy and pyright), import layers; changes nothing
	@$(MAKE) --no-print-directory -j 2 -k $(CHECKS)

check-mypy:
	$(BIN)/mypy src $(wildcard tests/typing)

check-pyright:
	$(BIN)/pyright

check-lint:
	$(BIN)/ruff check .

check-format:
	$(BIN)/ruff format --check .

check-layers:
	$(BIN)/lint-imports --no-logo

house: .venv/.installed-dev ## The size of the source and the length of its walks, beside what is wanted (ARGS=-v says where)
	@$(HOUSE) $(ARGS)

bench: .venv/.installed-dev ## The benchmarks (ARGS="..." is handed on)
	$(BIN)/python -m benchmarks $(ARGS)

docs: .venv/.installed-dev ## Write the generated part of the docs: what each queue provider can do
	$(BIN)/python docs/capabilities.py

format: .venv/.installed-dev ## Let ruff fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv, builds and caches
	rm -rf .venv .floors build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
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
