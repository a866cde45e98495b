# Every target sets itself up: it needs Python 3.11 or newer, make, and pip with an index to install from.
#   make demo                a real four-rank Gloo job with a planted bug, and the report on it
#   make test                every test; pytest's options pass through: make test ARGS="-k spec -m 'not slow'"

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.simcoll-ready
NATIVE := build/.native
ARGS ?=

CANDIDATES := python3 python3.11 python3.12 python3.13
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in $(CANDIDATES); do \
	"$$name" -c '$(NEW_ENOUGH)' 2>/dev/null && echo "$$name" && break; done)

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\#.*/\1/p' $(MAKEFILE_LIST))

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(NATIVE)  ## make .venv with simcoll, torch and the tools (the other targets do it by themselves)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "simcoll: no Python 3.11 or newer among: $(CANDIDATES); name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "simcoll: setting up $(VENV) (once)" >&2
	@$(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip setuptools
	@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[torch]' --group dev --group docs
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # on all cores, as pip does not; templates are no Python
	@touch $@

# The parts in C, built again where one has changed. Without a compiler their twins in Python do the same (CONTRIBUTING.md).
$(NATIVE): $(READY) setup.py $(wildcard simcoll/*/_*.c verifier/*/_*.c)
	@mkdir -p build && rm -f simcoll/*/_*.so verifier/*/_*.so
	@$(BIN)/python setup.py build_ext --inplace >build/native.log 2>&1 || true
	@ls simcoll/*/_*.so >/dev/null 2>&1 || echo "simcoll: the parts in C are not built, those in Python serve: build/native.log" >&2
	@touch $@

demo: $(READY)  ## a planted bug on four real Gloo ranks; exits 0 exactly when it is reported
	@$(BIN)/python .ci/demo.py

test: $(NATIVE)  ## all tests; ARGS goes to pytest
	@$(BIN)/python -m pytest $(ARGS)

nightly: $(NATIVE)  ## all tests, with every seed, every command started as users start it, and PyTorch's suites also without simcoll
	@SIMCOLL_SEEDS=all SIMCOLL_TESTS_COLD=1 SIMCOLL_PYTORCH_BASELINE=run $(BIN)/python -m pytest $(ARGS)

pytorch-baseline: $(READY)  ## the results of PyTorch's own tests without simcoll, written down for this torch
	@$(BIN)/python -m tests.pytorch.test_same_results

PAGE := reports/page/vendor
lint: $(READY)  ## ruff's rules and its formatting; and of the page's scripts, where npm is there, ESLint's and TypeScript's
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@command -v npm >/dev/null || { echo "lint: no npm; the scripts of report.html are not checked" >&2; exit 0; } && \
		{ [ -x $(PAGE)/node_modules/.bin/eslint ] || (cd $(PAGE) && npm ci --no-audit --no-fund >/dev/null) || \
		{ echo "lint: npm cannot install ESLint and axe; what they check of report.html is not checked" >&2; exit 0; }; } && \
		cd $(PAGE) && npm run --silent lint

format: $(READY)  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Type checkers cannot follow the mapping of the four folders to one package, so they get it as symbolic links.
TYPED := tests examples benchmarks docs
types: $(READY)  ## mypy, strict
	@rm -rf .typing && mkdir -p .typing/simcoll
	@cd .typing/simcoll && ln -s ../../simcoll/[a-z]* ../../simcoll/__*__.py ../../backends ../../reports ../../verifier .
	@cd .typing && ln -s $(TYPED:%=../%) . && ln -s ../.ci ci
	@cd .typing && ../$(BIN)/mypy --config-file ../pyproject.toml simcoll $(TYPED) ci

docs: $(READY)  ## the pages as a site, build/docs/index.html; a broken link, or a page that none lists, is an error
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --nitpicky --keep-going --fresh-env --quiet \
		--conf-dir docs --doctree-dir build/doctrees . build/docs

bench: $(NATIVE)  ## what a call costs in each mode, beside plain and beside TORCH_DISTRIBUTED_DEBUG=DETAIL
	@$(BIN)/python -m benchmarks.overhead $(ARGS)

bench-groups: $(READY)  ## what a group costs in each mode: to make it, and its first call
	@$(BIN)/python -m benchmarks.groups $(ARGS)

bench-hot-path: $(NATIVE)  ## what a call adds to the main thread's CPU time and to the wall time in each mode, in turns
	@$(BIN)/python -m benchmarks.hot_path $(ARGS)

bench-training: $(NATIVE)  ## what a training step of a real model costs in each mode, DDP and FSDP2
	@$(BIN)/python -m benchmarks.training $(ARGS)

bench-watching: $(NATIVE)  ## what it costs a job to be watched by `simcoll top` and `simcoll metrics`, in turns
	@$(BIN)/python -m benchmarks.watching $(ARGS)

bench-answers: $(READY)  ## how soon top, status, the metrics and the report tell a hang, a kill and a slow rank
	@$(BIN)/python -m benchmarks.answers $(ARGS)

bench-values: $(READY)  ## what checking the values of collectives costs a training step, DDP and FSDP2
	@$(BIN)/python -m benchmarks.values $(ARGS)

bench-faults: $(READY)  ## how many injected faults --values all finds, at the right rank and call; minutes
	@$(BIN)/python -m benchmarks.value_faults $(ARGS)

bench-estimate: $(READY)  ## how right the estimator is on measured rows, beside PyTorch's model, and how fast
	@$(BIN)/python -m benchmarks.estimate $(ARGS)

bench-verify: $(READY)  ## how long `simcoll verify` takes over 4,096 ranks, and beside torchfrtrace on the same dumps
	@$(BIN)/python -m benchmarks.verify $(ARGS)

bench-nodes: $(READY)  ## what node 0 takes for 200 nodes that share no folder, pretended by processes of this machine
	@$(BIN)/python -m benchmarks.nodes $(ARGS)

bench-bounded: $(READY)  ## what a long job holds in memory and files, and while Works are dropped, beside plain torch
	@$(BIN)/python -m benchmarks.bounded $(ARGS)

bench-cliffs: $(READY)  ## random jobs beside neighbours (at most three times as much a record) and easy cases (twice the command); exits 1 if one is above
	@$(BIN)/python -m benchmarks.cliffs $(ARGS)

costs: $(READY)  ## how each cost grows with ranks, calls and groups: measured anew, and docs/costs.md made of it; minutes
	@$(BIN)/python -m benchmarks.growth $(ARGS)
	@$(BIN)/python docs/cost_page.py

bench-price: $(READY)  ## how long `simcoll estimate` takes over 10,000 calls of each of 1,024 ranks
	@$(BIN)/python -m benchmarks.price $(ARGS)

fit-plan: $(READY)  ## fit what `simcoll plan` takes GPUs to reach on the measured steps; ARGS="--check" shows the errors only
	@$(BIN)/python -m benchmarks.fit_plan $(ARGS)

bench-plan: $(READY)  ## how long `simcoll plan` takes: one plan, 10,000 layouts, sixteen times as many GPUs
	@$(BIN)/python -m benchmarks.plan $(ARGS)

bench-preflight: $(READY)  ## how long `simcoll estimate script.py` takes over an 8 B model on 512 ranks, and its volumes
	@$(BIN)/python -m benchmarks.preflight $(ARGS)

bench-in-process: $(READY)  ## ranks in one process, beside PyTorch's own threaded group in the same run
	@$(BIN)/python -m benchmarks.in_process $(ARGS)

bench-page: $(READY)  ## how soon report.html paints and how large it is, beside an empty page in the same browser
	@$(BIN)/python -m benchmarks.page $(ARGS)

bench-time-estimators: $(READY)  ## simcoll's estimates beside NCCL's own, where there is a GPU; skips with a reason elsewhere
	@$(BIN)/python -m benchmarks.time_estimators $(ARGS)

compare: $(READY)  ## what torch alone, DETAIL, torchfrtrace and simcoll say of the same faulty and correct programs
	@$(BIN)/python -m benchmarks.compare $(ARGS)
	@$(BIN)/python -m benchmarks.compare --corpus real $(ARGS)
	@$(BIN)/python docs/comparison_tables.py

gpu: $(READY)  ## all that needs a GPU, in one table; skips with a reason where there is none
	@PYTHON=$(CURDIR)/$(BIN)/python benchmarks/gpu_check.sh $(ARGS)

# Kept apart from .venv, whose torch may be the CPU build. An interpreter that is there already is used as it is.
SIMCOLL_CUDA_PYTHON ?= .venv-cuda/bin/python
test-cuda-double: $(READY)  ## torch's ProcessGroupNCCL on a test double, without a GPU; makes .venv-cuda once (gigabytes)
	@test -x "$(SIMCOLL_CUDA_PYTHON)" || { "$(PYTHON)" -m venv .venv-cuda && \
		.venv-cuda/bin/python -m pip install --quiet --editable '.[torch]' || { rm -rf .venv-cuda; exit 1; }; }
	@SIMCOLL_CUDA_PYTHON="$(abspath $(SIMCOLL_CUDA_PYTHON))" $(BIN)/python -m pytest tests/cuda/test_cuda_double.py $(ARGS)

# Kept apart from .venv: a user of simcoll needs none of these.
FRAMEWORKS := .venv-frameworks
test-frameworks: $(READY) $(FRAMEWORKS)/.simcoll-ready  ## the how-to pages on Ray, Lightning, Hugging Face's Trainer, Accelerate and DeepSpeed; makes .venv-frameworks once
	@PATH="$(abspath $(FRAMEWORKS)/bin):$$PATH" $(FRAMEWORKS)/bin/python -m pytest tests/documents/test_documents.py \
		-k 'ray.md or lightning.md or transformers.md or accelerate.md or deepspeed.md' $(ARGS)

# The pip that a new environment brings may be too old to know --group.
$(FRAMEWORKS)/.simcoll-ready: pyproject.toml constraints.txt
	@echo "simcoll: setting up $(FRAMEWORKS) (once)" >&2
	@"$(PYTHON)" -m venv --clear $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip setuptools
	@$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]' \
		--group dev --group frameworks
	@touch $@

# Kept apart from .venv: Ray alone is 80 MB.
EXECUTORS := .venv-executors
test-executors: $(READY) $(EXECUTORS)/.simcoll-ready  ## what --executor names, on real clusters of Dask and Ray; makes .venv-executors once
	@SIMCOLL_SEEDS=all $(EXECUTORS)/bin/python -m pytest tests/core/test_executors.py tests/dryrun/test_spread_ranks.py $(ARGS)

bench-executors: $(READY) $(EXECUTORS)/.simcoll-ready  ## verify, preflight and a search on one and on two workers of Dask
	@$(EXECUTORS)/bin/python -m benchmarks.executors $(ARGS)

$(EXECUTORS)/.simcoll-ready: pyproject.toml constraints.txt
	@echo "simcoll: setting up $(EXECUTORS) (once)" >&2
	@"$(PYTHON)" -m venv --clear $(EXECUTORS)
	@$(EXECUTORS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip setuptools
	@$(EXECUTORS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dask,ray,slurm]' --group dev
	@touch $@

# Other versions than the pinned ones, each in an environment of its own with the newest of all other packages.
test-core:  ## the tests of what needs no torch; PYTHON=python3.13 names another Python, 3.10 or newer
	@$(MAKE) --no-print-directory with-versions VERSIONS=.venv-$(notdir $(PYTHON)) WANTED=.

TORCH ?= 2.11.0
test-torch:  ## every test with another torch: make test-torch TORCH=2.15.0; makes .venv-torch-2.15.0 once (gigabytes)
	@$(MAKE) --no-print-directory with-versions VERSIONS=.venv-torch-$(TORCH) WANTED=".[torch] torch==$(TORCH)"

with-versions:
	@test -e $(VERSIONS)/.simcoll-ready || { echo "simcoll: setting up $(VERSIONS) (once)" >&2 && \
		"$(PYTHON)" -m venv --clear $(VERSIONS) && $(VERSIONS)/bin/python -m pip install --quiet --upgrade pip && \
		PIP_CONSTRAINT=/dev/null $(VERSIONS)/bin/python -m pip install --quiet --editable $(WANTED) --group dev && \
		touch $(VERSIONS)/.simcoll-ready; }
	@$(VERSIONS)/bin/python -m pytest $(ARGS)

picture: $(READY)  ## draw the reports in the README and in docs anew, on a terminal and as a page, from real runs; needs Chromium
	@$(BIN)/python docs/draw_report.py
	@$(BIN)/python -m docs.draw_page
	@$(BIN)/python -m docs.draw_tutorial

diagram: $(READY)  ## draw the diagram of docs/architecture.md anew from its source; needs Graphviz's dot
	@$(BIN)/python docs/draw_architecture.py

gallery: $(READY)  ## draw the reports of the gallery anew, from real runs (CODE=SC104 for one), and write its page
	@$(BIN)/python -m docs.draw_gallery $(CODE)
	@$(BIN)/python docs/gallery.py

vendor:  ## bundle anew what report.html is drawn with, from the packages that its lock file names; needs npm
	@cd reports/page/vendor && npm ci --no-audit --no-fund && npm run bundle

pages: $(READY)  ## write the pages anew that are made from code and data: collectives, rules, verdict, scenarios, gallery, comparisons
	@$(BIN)/python docs/spec_table.py
	@$(BIN)/python docs/rule_pages.py
	@$(BIN)/python docs/verdict.py
	@$(BIN)/python docs/causes.py
	@$(BIN)/python docs/scenario_keys.py
	@$(BIN)/python docs/gallery.py
	@$(BIN)/python docs/comparison_tables.py
	@$(BIN)/python docs/cost_page.py

# From the commit alone, so that nothing else that lies here is shipped, and dated by it.
DATED = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/release/bin/python -m build
dist:  ## build the source archive and the wheels of the last commit into dist/, and check them
	@test -x build/release/bin/twine || { "$(PYTHON)" -m venv build/release && \
		build/release/bin/python -m pip install --quiet --upgrade pip && \
		build/release/bin/python -m pip install --quiet --group release; }
	@rm -rf dist build/commit build/wheel && git clone --quiet . build/commit
	@SIMCOLL_NATIVE=0 $(DATED) --outdir dist build/commit >build/dist.log 2>&1 || { cat build/dist.log >&2; exit 1; }
	@$(DATED) --wheel --outdir build/wheel build/commit >>build/dist.log 2>&1 || { cat build/dist.log >&2; exit 1; }
	@PATH="$(abspath build/release/bin):$$PATH" build/release/bin/auditwheel repair --wheel-dir dist build/wheel/*.whl \
		>>build/dist.log 2>&1 || echo "simcoll: no wheel with the parts in C: build/dist.log" >&2
	@build/release/bin/twine check --strict dist/*

clean:  ## remove everything that make made
	rm -rf $(VENV) .venv-* .typing build dist simcoll/*/_*.so *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
