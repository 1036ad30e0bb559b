# Every target sets up what it needs. `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPES := .venv-types

.PHONY: demo test lint types bench test-capacity test-generators test-faults soak test-ui clean

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cachewatch needs Python 3.11 or newer; $(PYTHON) is older: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check 'ruff>=0.9'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/cachewatch demo

test: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist loadfile -m 'not generators and not faults and not slow and not ui' $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# An environment of its own with a plain install: type checkers cannot see through
# the import hook of an editable install with mapped folders.
types: $(VENV)/.installed
	@test -d $(TYPES) || $(PYTHON) -m venv $(TYPES)
	$(TYPES)/bin/pip install -q --disable-pip-version-check '.[test,types]'
	$(TYPES)/bin/pip install -q --disable-pip-version-check --no-deps --force-reinstall .
	$(TYPES)/bin/mypy src/prefect_cachewatch flows tasks tests/typing
	$(TYPES)/bin/pyright --pythonpath $(TYPES)/bin/python

# Independent simulators that the planner is compared with.
$(VENV)/.peers: $(VENV)/.test
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test,peers]'
	@touch $@

bench: $(VENV)/.peers
	$(BIN)/python -m tests.benchmarks $(ARGS)

# The planner against independent codes (octave with its queueing package, ciw, simpy) and a real disk.
test-capacity: $(VENV)/.peers
	@command -v octave-cli >/dev/null || { echo "make test-capacity checks the planner against octave, which is not installed: apt install octave octave-queueing" >&2; exit 1; }
	$(BIN)/pytest -m slow tests/engine tests/processes $(ARGS)

test-generators: $(VENV)/.test
	$(BIN)/pytest -m generators tests/generators $(ARGS)

# A Prefect server, a worker and a headless Chromium (Debian's package chromium); screenshots in build/screenshots.
test-ui: $(VENV)/.test
	$(BIN)/pip install -q --disable-pip-version-check 'py-spy>=0.4'
	CACHEWATCH_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/pytest -m ui tests/ui $(ARGS)

# Writes what was promised and measured to docs/reliability.md. Best as root: mounts and other users need it.
test-faults: $(VENV)/.test
	RELIABILITY_TABLE=docs/reliability.md $(BIN)/pytest -m faults tests/faults $(ARGS)

# Random faults against random trees: make soak MINUTES=10 [SEED=n [CASE=n]]
MINUTES ?= 10
soak: $(VENV)/.test
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

clean:
	rm -rf $(VENV) $(TYPES) build dist .pytest_cache .mypy_cache .ruff_cache
