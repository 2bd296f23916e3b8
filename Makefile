# Every target is listed by a bare `make`. What is downloaded and built is cached under the user's cache folder (XDG).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
SYNCED := .venv/.synced
WITH_VLLM := .venv/.synced-vllm
KUBECONTEXT ?=
# Byte code is kept, whatever the environment says: compiling tests and product anew took a fifth of the unit tests' CPU.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/bytecode
# Processes that share the files of the unit tests out; each reads all of them, 11 s of CPU, and one imports vLLM, which
# takes up to 2 GB. 0: in this one.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist loadfile

.PHONY: help demo test test-full test-tools test-gpu cluster cluster-down cluster-env unit contract e2e chaos bench bench-scale bench-autoscaling bench-fetch calibration docs diagrams lint format crds operator engine release release-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {gsub(/[$$][$$]/, "$$", $$2); printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(SYNCED) ## from nothing to an answered chat completion (KUBECONTEXT=name: on your own cluster)
	@$(PYTHON) -m localcluster demo $(if $(KUBECONTEXT),--context "$(KUBECONTEXT)") \
	  $(if $(OPERATOR_IMAGE),--operator-image "$(OPERATOR_IMAGE)") $(if $(CPU_IMAGE),--cpu-image "$(CPU_IMAGE)")

test: $(WITH_VLLM) ## lint, types, layers, unit, contract and end-to-end tests, on a real local cluster
	@tools/scripts/test

test-full: $(WITH_VLLM) ## what `make test` leaves out, in parts: PART="engines zero stories unit oldest" (all)
	@tools/scripts/test --full $(PART)

test-gpu: $(SYNCED) ## what only a GPU shows: on this machine, and on the cluster of KUBECONTEXT; says why where it skips
	@KUBECONTEXT="$(KUBECONTEXT)" .venv/bin/pytest tests/gpu

cluster: $(SYNCED) ## a real local Kubernetes with the operator installed
	@$(PYTHON) -m localcluster up --images
	@$(PYTHON) -m localcluster install

cluster-down: $(SYNCED) ## stop the local cluster; nothing it made is left running
	@$(PYTHON) -m localcluster down

cluster-env: $(SYNCED) ## print KUBECONFIG and PATH: eval "$$(make -s cluster-env)"
	@$(PYTHON) -m localcluster env

operator: $(SYNCED) ## rebuild the operator's image and put it into the running cluster
	@$(PYTHON) -m localcluster images --only operator
	@$(PYTHON) -m localcluster install

unit: $(WITH_VLLM) ## unit tests (no cluster), but for those that only `make test-full` runs
	@.venv/bin/pytest $(PARALLEL) -m "not full" tests/unit

test-tools: $(WITH_VLLM) ## tests of what lies in tools/ and is no part of what users run (no cluster)
	@.venv/bin/pytest $(PARALLEL) -m "not full" tools

contract: $(SYNCED) ## manifests against the running cluster's API server
	@.venv/bin/pytest tests/contract

e2e: $(SYNCED) ## end-to-end tests against the running cluster (make cluster)
	@.venv/bin/pytest tests/e2e

chaos: $(SYNCED) ## ten minutes of everything at once on the running cluster (SEED=n: the steps of that run, MINUTES=n, ENGINE=vllm)
	@.venv/bin/pytest -s tests/chaos --minutes "$(or $(MINUTES),10)" $(if $(SEED),--seed "$(SEED)") $(if $(ENGINE),--engine "$(ENGINE)")

bench: $(SYNCED) ## CPU time of plans, of each stage of a look and of commands; apply to first token beside a bare vLLM, in the running cluster (make cluster)
	@$(PYTHON) -m benchmarks.plan
	@$(PYTHON) -m benchmarks.stages
	@$(PYTHON) -m benchmarks.cli
	@$(PYTHON) -m benchmarks.first_answer

bench-scale: $(SYNCED) ## N services (100) beside the control plane, with goals: N=n, RATE=r a second, FAULTS=1, INSPECT=1, JSON=file (make cluster)
	@$(PYTHON) -m benchmarks.scale --services "$(or $(N),100)" $(if $(RATE),--rate "$(RATE)") $(if $(FAULTS),--faults) \
	  $(if $(INSPECT),--inspect) $(if $(JSON),--json "$(JSON)")

bench-autoscaling: $(SYNCED) ## N services (100) that scale with their load, nine of ten at zero: activator and operator: JSON=file (make cluster)
	@$(PYTHON) -m benchmarks.autoscaling --services "$(or $(N),100)" $(if $(JSON),--json "$(JSON)")
	@$(PYTHON) -m benchmarks.autoscaling.attacked

bench-fetch: $(SYNCED) ## MB/s, CPU and memory of fetching beside other tools, and after a kill: OLD=checkout, ROUNDS=n; writes its page
	@$(PYTHON) -m benchmarks.fetch $(if $(OLD),--old "$(OLD)") --rounds "$(or $(ROUNDS),5)" --json tools/benchmarks/fetch/results/fetch.json
	@$(PYTHON) -m benchmarks.fetch.page

calibration: $(SYNCED) ## fit the planner's constants to the measured start-ups; writes them and their page
	@$(PYTHON) -m benchmarks.calibration --write

docs: $(SYNCED) ## the documentation as a site in dist/site, links checked: VERSION=0.1.0 beside other versions (default: dev)
	@$(PYTHON) -m scripts.site $(if $(VERSION),--version "$(VERSION)")

diagrams: $(SYNCED) ## draw the pages' mermaid diagrams that changed, for the site (needs npm and Chromium)
	@$(PYTHON) -m scripts.site.diagrams

lint: $(SYNCED) ## ruff, mypy, layers, stale generated files
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@$(PYTHON) -m llmservice_api.crd --check
	@$(PYTHON) -m llmservice_cli.reference --check
	@$(PYTHON) -m scripts.chart_values --check
	@$(PYTHON) -m scripts.vllm_messages --check
	@$(PYTHON) -m monitoring --check
	@$(PYTHON) -m scripts.kustomize_base --check
	@$(PYTHON) -m benchmarks.sizing --check
	@$(PYTHON) -m benchmarks.gpu.served.page --check
	@$(PYTHON) -m scripts.site.diagrams --check

format: $(SYNCED) ## format the code
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

crds: $(SYNCED) ## regenerate the CRD and the reference pages from the models, the command line and the chart
	@$(PYTHON) -m llmservice_api.crd
	@$(PYTHON) -m llmservice_operator.service.metrics > docs/reference/metrics.md
	@$(PYTHON) -m llmservice_activator.metrics > docs/reference/scaler-metrics.md
	@$(PYTHON) -m llmservice_cli.reference
	@$(PYTHON) -m scripts.vllm_messages
	@$(PYTHON) -m scripts.chart_values
	@$(PYTHON) -m monitoring

release: $(SYNCED) ## wheel, images, OCI chart, SBOMs, provenance: REGISTRY=host/path [KEY=cosign.key|keyless] [VERSION=] [ONLY="operator chart"] [MIRROR=host/path] [INSECURE=1] [DRY_RUN=1]
	@$(PYTHON) -m release make --registry "$(REGISTRY)" $(if $(VERSION),--version "$(VERSION)") $(if $(KEY),--key "$(KEY)") \
	  $(foreach part,$(ONLY),--only $(part)) $(if $(MIRROR),--mirror "$(MIRROR)") $(if $(INSECURE),--insecure) $(if $(DRY_RUN),--dry-run) \
	  $(if $(KEEP_TAGS),--keep-tags) $(if $(LOGGED),--logged)

release-check: $(SYNCED) ## verify what `make release` made: REGISTRY=host/path [KEY=cosign.pub | IDENTITY=regexp ISSUER=url] [INSECURE=1]
	@$(PYTHON) -m release check --registry "$(REGISTRY)" $(if $(VERSION),--version "$(VERSION)") $(if $(KEY),--key "$(KEY)") \
	  $(if $(IDENTITY),--identity "$(IDENTITY)") $(if $(ISSUER),--issuer "$(ISSUER)") $(if $(INSECURE),--insecure) $(if $(LOGGED),--logged)

engine: $(WITH_VLLM) ## the Python packages with vLLM and PyTorch in .venv, for the tests and the tiny model

clean: ## remove the virtual environment and caches of this clone (not the cluster: cluster-down)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(SYNCED): pyproject.toml uv.lock
	@echo "installing the Python packages of uv.lock into .venv" >&2
	@tools/scripts/uv sync --frozen --all-extras --inexact
	@touch $@

$(WITH_VLLM): pyproject.toml uv.lock
	@echo "installing the Python packages of uv.lock and vLLM into .venv (6 GB; uv keeps them in its cache)" >&2
	@tools/scripts/uv sync --frozen --all-extras --group vllm
	@touch $@ $(SYNCED)
