# Every target sets up what it needs; `make help` lists them. `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPES := .venv-types
DOCS := .venv-docs
PIP := pip install -q --disable-pip-version-check
# Markers of the slower tests, each with a target of its own.
APART := contract or generators or faults or ui or deployments or campaign or server or fleet or containers or scale or peers
# Builds share build/lib and the egg-info: one at a time, also where several targets run side by side. What lies in
# build/lib from before goes, since modules that have moved would be installed from there.
ALONE := flock pyproject.toml sh -c
# Directories of which all tests are apart: several workers need not import them.
NOTHING_HERE := $(addprefix tests/,containers deployments faults generators scale ui)
WORKERS ?= 5

.PHONY: help install hooks demo test coverage lint format types docs build size picture bench test-containers test-generators test-contract test-defects test-campaigns test-server test-fleet test-faults test-peers test-deployments test-scale test-ui test-versions test-all images scale soak clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "cachewatch needs Python 3.11 or newer; $(PYTHON) is older: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(BIN)/$(PIP) -e '.[lint]'
	@touch $@

install: $(VENV)/.test $(VENV)/.lint ## Set up .venv with the package, its tests and its linter.

# pre-commit is yours to install (pipx install pre-commit): it runs the targets of this file.
hooks: install ## Let git run the quick checks before each commit.
	pre-commit install

demo: $(VENV)/.installed ## Show a healthy and a frozen generation through the real flow.
	rm -rf demo-output
	$(BIN)/python examples/demo.py

# Half of a test's time is waiting: five of them keep two cores busy. The many commands find our modules compiled.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.test ## Run the tests; ARGS="-k word" picks some.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(NOTHING_HERE:%=--ignore=%) -m 'not ($(APART))' $(ARGS)

lint: $(VENV)/.lint ## Check style and format (ruff).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint ## Format, and mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An environment of its own with a plain install: type checkers cannot see through
# the import hook of an editable install with mapped folders.
types: $(VENV)/.installed ## Check types (mypy strict, pyright), in an environment of their own.
	@test -d $(TYPES) || $(PYTHON) -m venv $(TYPES)
	$(ALONE) "$(TYPES)/bin/$(PIP) '.[test,types]' && rm -rf build/lib && $(TYPES)/bin/$(PIP) --no-deps --force-reinstall ."
	$(TYPES)/bin/mypy src/prefect_cachewatch flows tasks tests/typing
	$(TYPES)/bin/pyright --pythonpath $(TYPES)/bin/python

# Lines and branches, those of started commands and flows too. COVERED chooses the tests, FLOOR is the least percentage:
# below it the target fails. A test that fails, slowed down as all are here, is the matter of `make test`.
FLOOR ?= 60
COVERED ?= -n 4 --dist worksteal -m 'not ($(APART) or footprint)'
$(VENV)/.coverage: $(VENV)/.test
	$(BIN)/$(PIP) -e '.[test,coverage]'
	@touch $@

coverage: $(VENV)/.coverage ## Measure what the tests execute; fail below FLOOR per cent.
	rm -rf build/coverage
	mkdir -p build/coverage
	$(BIN)/coverage run -m pytest --timeout 600 $(COVERED) $(ARGS) || [ $$? -eq 1 ]
	$(BIN)/coverage combine -q
	$(BIN)/coverage html -q
	$(BIN)/coverage report --fail-under=$(FLOOR)

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/$(PIP) "$$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')"
	@touch $@

docs: $(DOCS)/.installed ## Build the documentation site into build/site; a warning is an error.
	NO_COLOR=1 $(DOCS)/bin/zensical build --clean --strict

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/$(PIP) -e '.[release]'
	@touch $@

build: $(VENV)/.release ## Build sdist and wheel into dist, and check them as PyPI does.
	rm -rf dist
	$(ALONE) '$(BIN)/python -m build --outdir dist'
	$(BIN)/twine check --strict dist/*

size: $(VENV)/.installed ## Say how large the code is, room by room.
	$(BIN)/python tests/size.py $(ARGS)

picture: $(VENV)/.installed ## Draw the README's picture of a caught stall from a real run.
	$(BIN)/python tests/picture.py docs/images/stall.svg

# An independent simulator that the planner is compared with.
$(VENV)/.peers: $(VENV)/.test
	$(BIN)/$(PIP) -e '.[test,peers]'
	@touch $@

bench: $(VENV)/.peers ## Measure what it costs and how fast it is, beside named peers; about 20 minutes.
	$(BIN)/python -m tests.benchmarks $(ARGS)

test-generators: $(VENV)/.test ## Test with real cache generators, each in an environment of its own.
	$(BIN)/pytest -m generators tests/generators $(ARGS)

# What `make test` runs of tests/contract is not run again.
test-contract: $(VENV)/.test ## Test the product through its doors, the rows that `make test` has no time for.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m contract tests/contract $(ARGS)

test-defects: $(VENV)/.test ## Break promises on purpose, and see which row of the contract turns red; ARGS=word picks some.
	$(BIN)/python tests/defects.py $(ARGS)

# Kills at every call, signals one by one, deadlines that are waited for: what repeats the paths of `make test` at length.
test-campaigns: $(VENV)/.test ## Test with every kill, signal and hung reader, one by one.
	$(BIN)/pytest -n 4 --dist worksteal -m "campaign and not fleet" tests/engine tests/processes tests/orchestration tests/contract $(ARGS)

# Flows as people start them: deployments, a worker, serve(), `cachewatch generate`, and every block of the README.
test-server: $(VENV)/.test ## Test flows, workers, commands and the README's blocks on a real Prefect server.
	$(BIN)/pytest -n 2 --dist worksteal -m server tests/orchestration $(ARGS)

# Many generations as one, on a Prefect server with a worker: deaths, limits, cancellation, resuming.
test-fleet: $(VENV)/.test ## Test fleets on a real Prefect server with a worker.
	$(BIN)/pytest -m fleet tests/orchestration $(ARGS)

# A Prefect server, a worker and a headless Chromium (Debian's package chromium); screenshots in build/screenshots.
test-ui: $(VENV)/.test ## Test pages and Prefect's UI in a headless Chromium.
	$(BIN)/$(PIP) 'py-spy>=0.4'
	CACHEWATCH_SCREENSHOTS=$(CURDIR)/build/screenshots $(BIN)/pytest -m ui tests/ui $(ARGS)

# The templates on a real Prefect server, and against the schemas of Docker's and Kubernetes' workers, the Kubernetes
# API. A Docker worker runs its pool on podman, as root (Debian: podman runc catatonit busybox-static).
$(VENV)/.pools: $(VENV)/.test
	$(BIN)/$(PIP) -e '.[test,pools]'
	@touch $@

test-deployments: $(VENV)/.pools ## Test the templates on a real server and against the schemas of what they are for.
	$(BIN)/pytest -m deployments tests/deployments $(ARGS)

# The images of deployments/docker, and a guarded run in one: without root, capabilities or a writable root file system.
# Not in CI: it wants an engine and a base image with Python, ENGINE=podman BASE=localhost/debian-python for example.
ENGINE ?= docker
BASE ?= docker.io/library/python:3.12-slim-bookworm
images: ## Build the images of deployments/docker, and run a guarded generation in one.
	for image in job worker; do \
	    $(ENGINE) build $(BUILD_ARGS) -f deployments/docker/Dockerfile --build-arg BASE=$(BASE) --target $$image -t cachewatch-$$image . || exit; \
	done
	$(ENGINE) run --rm --init --read-only --tmpfs /tmp:mode=1777 --cap-drop ALL --security-opt no-new-privileges -v /mnt/caches cachewatch-job \
	    cachewatch exec --cache-dir /mnt/caches/smoke -- python3 -c "open('/mnt/caches/smoke/a', 'wb').write(bytes(9999))"

# Best as root: mounts and other users need it.
test-faults: $(VENV)/.test ## Inject real faults; best as root.
	$(BIN)/pytest -m faults tests/faults $(ARGS)

test-peers: $(VENV)/.peers ## Compare the planner with simpy, an independent simulator.
	$(BIN)/pytest -m peers tests/engine/capacity $(ARGS)

# Containers on an engine of its own: podman with runc, as root (Debian: podman runc catatonit busybox-static).
test-containers: $(VENV)/.test ## Test containers on an engine of its own; as root.
	$(BIN)/pytest -n 4 --dist loadfile -m containers tests/containers $(ARGS)

# Random faults against random trees: make soak MINUTES=10 [SEED=n [CASE=n]]
MINUTES ?= 10
soak: $(VENV)/.test ## Inject random faults: MINUTES=10 [SEED=n [CASE=n]].
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(CASE),--case $(CASE))

# A Prefect server on PostgreSQL and Redis (Debian's packages postgresql and redis-server), process workers, a worker
# killed and the server restarted: a dozen runs as a test; and 200. Best on a quiet machine.
$(VENV)/.scale: $(VENV)/.test
	$(BIN)/$(PIP) -e '.[test,scale]'
	@touch $@

test-scale: $(VENV)/.scale ## Run a dozen generations on PostgreSQL and Redis.
	$(BIN)/pytest -m scale tests/scale $(ARGS)

scale: $(VENV)/.scale ## Run 200 generations there; figures to build/scale.json.
	$(BIN)/python -m tests.scale $(ARGS)

# Each in an environment of its own below build/versions.
test-versions: ## Test the lowest and the newest Prefect, and each Python; ARGS="--prefect 3.7.6" tests one, ARGS=--short the lowest on the newest Python.
	$(PYTHON) tests/versions.py $(ARGS)

# The targets one after another; a failure holds up none. What CI leaves to it: campaigns, every fault as both users,
# generators, independent simulators, all versions, coverage.
ALL := lint types docs build test demo test-contract test-campaigns test-server test-fleet test-faults test-deployments test-containers \
       test-generators test-scale test-ui test-peers test-versions test-defects coverage soak
test-all: ## Run everything, as before a release; about two hours.
	@failed=; for target in $(ALL); do $(MAKE) $$target || failed="$$failed $$target"; done; \
	    if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi; echo "all passed: $(ALL)"

clean: ## Remove the environments and everything that was built.
	rm -rf $(VENV) $(TYPES) $(DOCS) build dist .pytest_cache .mypy_cache .ruff_cache
