# Two commands are enough: `make serve` and `make test`. Both set up what they need.
.DEFAULT_GOAL := help
.PHONY: help setup engine browser sdks image serve lint test bench readme clean

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
SETUP := $(VENV)/.setup
SDKS := agentrun agentrun-early
HAVE_DOCKER = docker version >/dev/null 2>&1

help: ## show this
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(SETUP) ## make .venv with everything the gateway and its tests need

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --progress-bar off --quiet --editable '.[science]' --group dev
	@touch $@

engine: ## give a Debian machine a Docker engine with gVisor (as root); nothing is done where there is one
	tests/engine/setup.sh --compose

browser: ## give a Debian machine the Chromium that tests drive (as root); nothing is done where there is one
	tests/clients/setup.sh

image: ## build the kernels' image, if its sources have changed
	kernel_image/build.sh

serve: setup ## run the gateway with the strongest isolation that is there
	@if $(HAVE_DOCKER); then kernel_image/build.sh; else echo '==> no Docker engine answers: kernels will not be sandboxed'; fi
	$(BIN)/kernel-gateway serve $(FLAGS)

lint: setup ## ruff, mypy, shell scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/shellcheck .ci/run kernel_image/build.sh tests/engine/setup.sh tests/clients/setup.sh tests/clients/browser.sh

sdks: $(addprefix .venv-,$(addsuffix /.setup,$(SDKS))) ## make an environment for each client that needs its own

.venv-%/.setup: pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-$*/bin/python -m pip install --progress-bar off --quiet --group $*
	@touch $@

test: setup engine browser sdks image ## every test, with a real engine, real gVisor and a real browser (Debian, root)
	$(BIN)/pytest $(FLAGS)

bench: setup engine image ## what an execution costs, beside a raw client and beside jupyter_kernel_gateway
	$(BIN)/python tests/benchmarks/execute.py $(FLAGS)
	$(BIN)/python tests/benchmarks/jupyter.py $(FLAGS)

readme: setup ## write the generated parts of the READMEs anew
	$(BIN)/python -m tests.readme

clean: ## forget all environments and caches
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache
