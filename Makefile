# Every target sets up what it needs. `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPES := .venv-types
# Markers of the slower tests, each with a target of its own.
APART := generators or faults or slow or ui or deployments or fleet or containers or scale or peers

.PHONY: demo test lint types bench size test-capacity test-containers test-generators test-fleet test-faults test-peers test-deployments test-scale test-ui images scale soak clean

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
	$(BIN)/pytest -n 4 --dist worksteal -m 'not ($(APART))' $(ARGS)

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

# Lines of code and files of each room.
size: $(VENV)/.installed
	$(BIN)/python tests/size.py

bench: $(VENV)/.peers
	$(BIN)/python -m tests.benchmarks $(ARGS)

# The planner against independent codes (octave with its queueing package, ciw, simpy).
test-capacity: $(VENV)/.peers
	@command -v octave-cli >/dev/null || { echo "make test-capacity checks the planner against octave, which is not installed: apt install octave octave-queueing" >&2; exit 1; }
	$(BIN)/pytest -m slow tests/engine $(ARGS)

test-generators: $(VENV)/.test
	$(BIN)/pytest -m generators tests/generators $(ARGS)

# Many generations as one, on a Prefect server with a worker: deaths, limits, cancellation, resuming.
test-fleet: $(VENV)/.test
	$(BIN)/pytest -m fleet tests/orchestration $(ARGS)

# A Prefect server, a worker and a headless Chromium (Debian's package chromium); screenshots in build/screenshots.
test-ui: $(VENV)/.test
	$(BIN)/pip install -q --disable-pip-version-check 'py-spy>=0.4'
	CACHEWATCH_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/pytest -m ui tests/ui $(ARGS)

# The templates on a real Prefect server, and against the schemas of Docker's and Kubernetes' workers, the Kubernetes
# API and the compose specification (compose-viz carries it; only its wheel is fetched). A Docker worker runs its pool on
# podman, as root (Debian: podman runc catatonit busybox-static).
$(VENV)/.pools: $(VENV)/.test
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test,pools]'
	$(BIN)/pip download -q --disable-pip-version-check --no-deps --dest build/schemas compose-viz==0.3.5
	@touch $@

test-deployments: $(VENV)/.pools
	$(BIN)/pytest -m deployments tests/deployments $(ARGS)

# The images of deployments/docker, and a guarded run in one: without root, capabilities or a writable root file system.
# Not in CI: it wants an engine and a base image with Python, ENGINE=podman BASE=localhost/debian-python for example.
ENGINE ?= docker
BASE ?= docker.io/library/python:3.12-slim-bookworm
images:
	for image in job worker server; do \
	    $(ENGINE) build $(BUILD_ARGS) -f deployments/docker/Dockerfile --build-arg BASE=$(BASE) --target $$image -t cachewatch-$$image . || exit; \
	done
	$(ENGINE) run --rm --init --read-only --tmpfs /tmp:mode=1777 --cap-drop ALL --security-opt no-new-privileges -v /mnt/caches cachewatch-job \
	    cachewatch exec --cache-dir /mnt/caches/smoke -- python3 -c "open('/mnt/caches/smoke/a', 'wb').write(bytes(9999))"

# Writes what was promised and measured to docs/reliability.md. Best as root: mounts and other users need it.
test-faults: $(VENV)/.test
	RELIABILITY_TABLE=docs/reliability.md $(BIN)/pytest -m faults tests/faults $(ARGS)

# The checks of timeout's, dumb-init's and tini's own test suites on `cachewatch exec`; writes docs/peers.md.
test-peers: $(VENV)/.test
	PEERS_TABLE=docs/peers.md $(BIN)/pytest -n 2 -m peers tests/processes/peers $(ARGS)

# Containers on an engine of its own: podman with runc, as root (Debian: podman runc catatonit busybox-static).
test-containers: $(VENV)/.test
	$(BIN)/pytest -n 4 --dist loadfile -m containers tests/containers $(ARGS)

# Random faults against random trees: make soak MINUTES=10 [SEED=n [CASE=n]]
MINUTES ?= 10
soak: $(VENV)/.test
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

# A Prefect server on PostgreSQL and Redis (Debian's packages postgresql and redis-server), process workers, a worker
# killed and the server restarted: a dozen runs as a test; and 200, which writes docs/scale.md. Best on a quiet machine.
$(VENV)/.scale: $(VENV)/.test
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test,scale]'
	@touch $@

test-scale: $(VENV)/.scale
	$(BIN)/pytest -m scale tests/scale $(ARGS)

scale: $(VENV)/.scale
	$(BIN)/python -m tests.scale --page docs/scale.md --output docs/scale.json $(ARGS)

clean:
	rm -rf $(VENV) $(TYPES) build dist .pytest_cache .mypy_cache .ruff_cache
