# Needs python3 (3.11 or newer) and make; everything else is installed into .venv.
PYTHON ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
SERVING := $(VENV)/.serving
DEV     := $(VENV)/.dev

# Where torch's CPU build is looked for, beside the places that pip is configured for; with TORCH_INDEX= only there.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help install venv demo test test-long test-fast test-gpu test-compose test-engines lint format proto docs outputs wheels bench bench-readme clean-kernels clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(SERVING) ## .venv with what serving needs: kolm up, make demo; no torch
venv: $(DEV) ## .venv with every pinned dependency: torch and the tests' too

$(SERVING): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kolm needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) packages/make_venv.py serving

$(DEV): $(SERVING)
	@$(PYTHON) packages/make_venv.py dev '$(TORCH_INDEX)'

demo: $(SERVING) ## serve, speculate, receipt, replay: the main job, end to end
	@$(BIN)/python -m demo.run

# Bytecode is kept, whatever the environment says: tests start some hundred processes.
export PYTHONDONTWRITEBYTECODE :=

# Workers share the tests out by module; two more than there are CPUs, for half of what they do is waiting. They are forks
# of one process that has imported the tests.
WORKERS := $(shell echo $$(($$(nproc) + 2)))
PYTEST  := $(BIN)/python -m pytest
FORKED   = $(BIN)/python -m tests.workers $(1) -q --dist=loadscope --no-loadscope-reorder
SPREAD  := $(call FORKED,$(WORKERS)) --compile
BESIDE  := +@$(MAKE) --no-print-directory --keep-going --jobs=2

test: $(DEV) ## lint and the whole test suite beside each other, with new random examples
	@echo "Runs ruff, mypy, import-linter and buf, and beside them every test in $(WORKERS) processes: about seven minutes on two free" \
	  "CPUs, and two more the first time. Ends with the tests that were skipped, and why; \`make test-fast\` runs a part." >&2
	$(BESIDE) suite lint

# Tests would wait for the disk for a minute in eight: what they write, 3 GB at most, lies in memory where there is room for
# it. PostgreSQL runs as another user, who has to get into the folder.
MEMORY  := [ "$$(awk '/^MemAvailable/ {print $$2}' /proc/meminfo)" -gt 8000000 ] && \
           [ "$$(df --output=avail /dev/shm | tail -1)" -gt 6000000 ]
PASSING  = folder=$$(mktemp -d "$$({ $(MEMORY); } 2>/dev/null && echo /dev/shm || echo $${TMPDIR:-/tmp})/kolm-XXXX") && \
           chmod 755 "$$folder" && trap 'rm -rf "$$folder"' EXIT INT TERM && TMPDIR=$$folder

suite:
	@$(PASSING) $(SPREAD)

test-long: $(DEV) ## the same with four times as many random examples and grids in full: for a night
	@$(PASSING) $(SPREAD) --hypothesis-profile=long

test-fast: $(DEV) ## unit tests but the slow ones, with few random examples
	@$(PASSING) $(call FORKED,$(shell nproc)) -m 'not slow' --hypothesis-profile=fast tests/unit

# Another OpenCL compiler: OCL_ICD_VENDORS names a folder with its .icd file; Intel's is in the wheel intel-opencl-rt.
test-gpu: $(DEV) ## the target on a GPU in full: PoCL, NVRTC, Oclgrind if it is there, SmolLM2 and heads beside the CPU: some minutes
	@$(PYTEST) -q tests/unit/generation/target/gpu tests/unit/generation/drafting/*/test_device_*.py --hypothesis-profile=long

# Where no image registry is reachable, images named as in Dockerfile and docker-compose.yml have to be there before.
test-compose: $(DEV) ## the stack of docker-compose.yml, built, used, killed piece by piece, taken down
	@KOLM_TEST_COMPOSE=1 $(PYTEST) -x tests/compose

# llama-server comes out of the package xllamacpp; ENGINES names others that run already, a line each: engine, plain URL,
# speculating URL, weights (docs/engines.md).
test-engines: $(DEV) ## real engines behind the generation service: llama-server with n-grams, and those in ENGINES
	@$(BIN)/python -m pip --quiet --disable-pip-version-check install xllamacpp==2026.10.11549
	@$(BIN)/python -m benchmarks.llama_server --port 8092 & plain=$$!; \
	  $(BIN)/python -m benchmarks.llama_server --port 8091 --spec-type ngram-map-k & fast=$$!; trap "kill $$plain $$fast" EXIT; \
	  KOLM_TEST_ENGINES="$$(printf 'llama-server http://127.0.0.1:8092 http://127.0.0.1:8091 smollm2\n%s' "$$ENGINES")" \
	  $(PYTEST) -q tests/engines

# Published fields are those of the commit where this branch left main; on main, those of the commit before.
PUBLISHED = $(shell git merge-base HEAD^ main 2>/dev/null || git merge-base HEAD^ origin/main 2>/dev/null || echo HEAD)

lint: $(DEV) ## ruff, mypy --strict, import directions, buf lint, buf breaking
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/buf lint
	@git archive $(PUBLISHED) buf.yaml protos | $(BIN)/buf breaking --against '-#format=tar'

format: $(DEV) ## apply ruff's fixes and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

proto: $(DEV) ## regenerate protos/gen from protos/kolm
	@$(BIN)/python protos/generate.py

docs: $(DEV) ## write the generated page and tables: configuration, public heads, README's table of lies
	@$(BIN)/python -m docs.configuration
	@$(BIN)/python -m docs.heads
	@$(BIN)/python -m docs.lies

outputs: $(DEV) ## run the commands whose output README and docs show, and write that output: a minute
	@$(BIN)/python -m docs.outputs

wheels: $(SERVING) ## build kolm-serve, and kolm-verify for those who only verify, into dist/
	@$(BIN)/python -m hatchling build --target wheel
	@cd packages/kolm-verify && ../../$(BIN)/python -m hatchling build --target wheel --directory ../../dist

bench-readme: $(DEV) ## measure the figures of README.md and render the pages: 20 minutes, llama.cpp's build beside it
	@$(BIN)/python -m benchmarks readme
	@$(BIN)/python -m benchmarks report

bench: $(DEV) ## measure what needs only this checkout, and the ledger, as JSON
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks --only specbench --quick
	@$(BIN)/python -m benchmarks.start
	@$(BIN)/python -m benchmarks.ledger
	@$(BIN)/python -m benchmarks.ledger.bundle

clean-kernels: ## forget compiled kernels
	@find services \( -name '*.nb[ci]' -o -path '*/kernels/*.o' \) -delete

clean: ## remove .venv and caches
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
