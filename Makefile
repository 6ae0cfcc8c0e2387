# Everything a developer or a build machine calls. `make help` lists it.
# Each target sets up what it needs; the environments are recreated when pyproject.toml changes.

OLDEST ?= 3.11
NEWEST ?= 3.13
DEBIAN ?= sid
VENV := .venv
NEWEST_VENV := .venv-$(NEWEST)
SEARCH_VENV := .venv-search
UI_VENV := .venv-ui
BIN := $(VENV)/bin
# Tests start hundreds of processes. Where the environment says that Python keeps no bytecode (PYTHONDONTWRITEBYTECODE),
# each of them would compile all that it imports.
COMPILE := python -m compileall -q runtime operator
COMPILED := .compiled
SLOWEST := --durations=20 --durations-min=2
# Files of quick tests are in memory where there is room.
QUICK = TMPDIR="$$(tools/test_folder)"
# The test cluster's Kubernetes: newest, or oldest, the oldest one that the chart accepts.
KUBERNETES ?= newest
export TRIALPOD_CLUSTER_KUBERNETES := $(KUBERNETES)
STAMP := .installed

.DEFAULT_GOAL := help
.PHONY: help demo test announced test-fast test-newest test-debian test-search test-ui test-gpu test-slow test-cluster cluster-together \
	cluster-apart cluster-serial test-addons cluster cluster-down cluster-image lint types layers style \
	format lock bench bench-scale bench-peers chaos-cluster site release sbom soak soak-day chaos minio clean bench-quality

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/$(STAMP): pyproject.toml requirements/dev.txt tools/make_venv
	tools/make_venv $(OLDEST) $(VENV)

$(NEWEST_VENV)/$(STAMP): pyproject.toml requirements/dev.txt tools/make_venv
	tools/make_venv $(NEWEST) $(NEWEST_VENV)

# In two steps, so that PyTorch comes on top of the same versions that the other tests run with.
$(SEARCH_VENV)/$(STAMP): pyproject.toml requirements/dev.txt tools/make_venv tools/search_overrides.txt
	tools/make_venv $(OLDEST) $(SEARCH_VENV)
	$(SEARCH_VENV)/bin/uv pip install --quiet --python $(SEARCH_VENV)/bin/python --override tools/search_overrides.txt \
	  --group search
	touch $@

# As for `search`: what is more than the other tests have comes on top of their versions.
$(UI_VENV)/$(STAMP): pyproject.toml requirements/dev.txt tools/make_venv tools/search_overrides.txt
	tools/make_venv $(OLDEST) $(UI_VENV)
	$(UI_VENV)/bin/uv pip install --quiet --python $(UI_VENV)/bin/python --override tools/search_overrides.txt --group ui
	touch $@

# Some packages have templates that are not Python, which cannot be compiled. Nothing imports these, or the packages' tests.
%/$(COMPILED): %/$(STAMP)
	@$*/bin/python -m compileall -qq -j 0 -x "/tests?/" $*/lib || true
	@touch $@

demo: $(VENV)/$(STAMP) ## Tune a real model on this machine: a live table, and a page in the browser (under two minutes)
	@$(BIN)/trialpod run examples/digits/experiment.yaml --storage trialpod-results/demo --ui $(DEMO_ARGS)

test: announced lint test-fast ## Lint, types, and the fast tests (three to four minutes on two cores, eight the first time)

# What takes minutes is said first, not when it begins.
announced:
	@tools/build_minio --announce

test-fast: $(VENV)/$(COMPILED)
	@tools/build_minio >/dev/null
	@$(BIN)/$(COMPILE)
	@echo "== unit, contract and local tests on Python $(OLDEST)"
	$(QUICK) $(BIN)/pytest -q -n 3 --dist loadgroup -m "not slow" $(SLOWEST) tests

test-slow: $(VENV)/$(COMPILED) test-newest ## The tests that take longer (kills, faults of the store, every example), and the newest Python
	@tools/build_minio >/dev/null
	@$(BIN)/$(COMPILE)
	@echo "== slow tests on Python $(OLDEST)"
	$(BIN)/pytest -q -n 4 --dist loadgroup -m slow $(SLOWEST) tests

test-newest: $(NEWEST_VENV)/$(COMPILED) ## The tests that depend on the version of Python, on the newest
	@tools/build_minio >/dev/null
	@$(NEWEST_VENV)/bin/$(COMPILE)
	@echo "== unit, contract and local tests on Python $(NEWEST), without those that do not depend on the version"
	$(QUICK) $(NEWEST_VENV)/bin/pytest -q -n 3 --dist loadgroup -m "not once and not slow" $(SLOWEST) \
	  tests/unit tests/contract tests/local

test-debian: ## The unit and contract tests with the Python of a Debian suite: DEBIAN=sid has the newest (root)
	@tools/test_in_debian $(DEBIAN)

test-search: $(SEARCH_VENV)/$(STAMP) ## Test what needs PyTorch: search algorithms, examples (5 GB, ten minutes)
	$(SEARCH_VENV)/bin/pytest -q -p no:xdist -o timeout=1200 tests/unit/tune/search/test_*_search.py tests/unit/tune/search/test_search_docs.py tests/local/test_command_examples.py

test-ui: $(UI_VENV)/$(COMPILED) ## Test the page in a browser; needs a chromium (apt-get install chromium)
	$(UI_VENV)/bin/pytest -q -p no:xdist -m ui $(SLOWEST) tests/ui

test-gpu: $(if $(GPU_PYTHON),,$(SEARCH_VENV)/$(STAMP)) ## Test trials on a real GPU (GPU_PYTHON=python3: with the PyTorch of that one)
	@nvidia-smi -L || { echo "make test-gpu needs an NVIDIA GPU and its driver; nvidia-smi found none" >&2; exit 1; }
	$(or $(GPU_PYTHON),$(SEARCH_VENV)/bin/python) -m pytest -q -p no:xdist -m gpu tests/local/test_gpu.py

# Side by side: types take longest, on one processor.
lint: $(VENV)/$(STAMP) ## Style, types, import layers and words
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target types layers style

style: $(VENV)/$(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_words

types: $(VENV)/$(STAMP)
	$(BIN)/mypy

layers: $(VENV)/$(STAMP)
	$(BIN)/lint-imports

format: $(VENV)/$(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Write the exact versions of dependencies to requirements/ (LOCK_ARGS=--upgrade: the newest)
	@tools/lock $(LOCK_ARGS)

bench: $(VENV)/$(STAMP) ## Measure the speed, beside Ray Tune from its wheel (installs it into a scratch environment)
	benchmarks/run $(BENCH_ARGS)

bench-scale: $(VENV)/$(COMPILED) ## Measure the operator with 1,000 running trials on fake nodes: SCALE=0.1 for fewer (root, Go)
	@$(BIN)/$(COMPILE)
	$(BIN)/python benchmarks/scale --scale $(or $(SCALE),1) $(BENCH_ARGS)

bench-peers: cluster ## Measure Katib and Ray Tune on KubeRay beside trialpod on the test cluster (root, Go; an hour, the first time more)
	$(BIN)/python benchmarks/peers --prepare
	tools/cluster/exec $(BIN)/python benchmarks/peers $(BENCH_ARGS)

bench-quality: $(VENV)/$(STAMP) ## Measure what tuners find for their GPU time, beside the peers' own code (QUICK=1: alone)
	$(BIN)/python benchmarks/quality $(if $(QUICK),--quick,--full) $(BENCH_ARGS)

cluster: $(VENV)/$(STAMP) ## Run a real two-node Kubernetes cluster with this tree's image (root; first time 10 to 20 minutes)
	@tools/cluster/up

cluster-down: $(VENV)/$(STAMP) ## Stop it and remove all that it made
	@tools/cluster/down

cluster-image: $(VENV)/$(STAMP) ## Build the image trialpod/trialpod:test and give it to the cluster's nodes
	@tools/cluster/image

# Where CLUSTER_ARGS chooses tests, a run may have none of them (pytest's exit status 5).
NONE_CHOSEN = { [ $$? -eq 5 ] && [ -n '$(CLUSTER_ARGS)' ]; }
CLUSTER_TESTS = $(SLOWEST) tests/cluster $(CLUSTER_ARGS)

test-cluster: cluster-together cluster-apart cluster-serial ## Run the tests that need the cluster: CLUSTER_ARGS="-k name" chooses, KUBERNETES=oldest the version

# What is compiled or installed from an index is made before: the cluster's network leads to neither.
cluster-together: cluster
	@for program in kstatus network-policies; do tools/build_go $$program > /dev/null || exit 1; done
	$(BIN)/pytest -q -p no:xdist tests/unit/cluster/status/test_kstatus_library.py
	@echo "== cluster tests on Python $(OLDEST): real API server, kubelets, containers and MinIO"
	tools/cluster/exec $(BIN)/pytest -q -n 4 --dist loadgroup -m "together and not addon" $(CLUSTER_TESTS) || $(NONE_CHOSEN)

cluster-apart: cluster
	@echo "== cluster tests with operators of their own"
	tools/cluster/exec $(BIN)/pytest -q -n 3 --dist loadgroup -m "apart and not addon" $(CLUSTER_TESTS) || $(NONE_CHOSEN)

cluster-serial: cluster
	@echo "== cluster tests that break the cluster or measure it, one after another"
	tools/cluster/exec $(BIN)/pytest -q -p no:xdist -m "cluster and not together and not apart and not addon" $(CLUSTER_TESTS) || $(NONE_CHOSEN)

test-addons: cluster ## Run the cluster tests that need other projects' programs: Kueue, JobSet, kwok, Sockeye, qemu
	@tools/build_go kueue > /dev/null
	@tools/build_go jobset > /dev/null
	@tools/trial_kinds > /dev/null
	@for name in darknet openmp; do tools/cluster/command debian $$name || exit 1; done
	@for name in python3.10-amd64 python3.11-arm64 sockeye; do tools/cluster/command python $$name > /dev/null || exit 1; done
	@tools/build_go promtool > /dev/null
	@command -v qemu-aarch64-static > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends qemu-user-static libc6-arm64-cross > /dev/null; }
	$(BIN)/pytest -q -p no:xdist tests/unit/chart
	$(BIN)/pytest -q -p no:xdist tests/local/test_command_examples.py tests/local/test_other_architecture.py
	tools/cluster/exec $(BIN)/pytest -m addon -p no:xdist tests/cluster $(CLUSTER_ARGS)

site: $(VENV)/$(STAMP) ## Build the documentation as a site in build/site; a broken link fails
	@tools/make_site

release: $(VENV)/$(STAMP) ## Make and try everything that a release publishes, in build/release: DRAFT=1 before the changelog is cut
	@tools/release

sbom: $(VENV)/$(STAMP) ## List what an image contains (CycloneDX, versions and licences) in build/sbom: EXTRAS=operator
	@tools/make_sbom $(or $(EXTRAS),operator)

soak: $(VENV)/$(STAMP) ## Simulate the whole system with new faults for SOAK_MINUTES=30; SOAK_SEED=n replays one
	@PYTHONHASHSEED=0 $(BIN)/python tests/simulation/soak.py

soak-day: $(VENV)/$(STAMP) ## Simulate HOURS=24 with SIZE=500 running trials: does anything grow? DAY_MINUTES=n ends it after that long
	@HOURS=$(HOURS) SIZE=$(SIZE) PYTHONHASHSEED=0 $(BIN)/python tests/simulation/soak_day.py

chaos: $(VENV)/$(STAMP) ## Kill, stop and cut off real processes for CHAOS_MINUTES=10 of new plans; CHAOS_SEED=n repeats one
	@tools/build_minio >/dev/null
	@$(BIN)/python tests/chaos/local_chaos.py

chaos-cluster: cluster ## Kill, stop and cut off parts of the cluster for CHAOS_MINUTES=30; CHAOS_SEED=n repeats a round
	tools/cluster/exec $(BIN)/python tests/chaos/cluster_chaos.py

minio: ## Build MinIO (once, minutes) and run it on 127.0.0.1 for your own experiments
	@tools/build_minio --serve

clean: ## Remove environments, caches and results
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis trialpod-results
