# Every target installs the pinned dependencies into .venv first. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := demo
.PHONY: help demo test test-slow test-gpu lint format docs picture clean lock audit coverage \
	bench bench-cold bench-page bench-compare sensitivity seeds kills interfaces inputs soak reproduce robust-page validate mutants trust-page \
	studies results pages

## Development

help:  ## List the targets.
	@awk -F ':.*## ' '/^## / {print "\n" substr($$0, 4)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed  ## Calibrate the example of the paper and open its report.
	$(BIN)/calibayes demo

test: .venv/installed  ## Run the test suite.
	$(BIN)/pytest

test-slow: .venv/installed  ## Run the slow tests; one of seven parts with PART=3/7.
	$(BIN)/pytest -m slow --part $(or $(PART),1/1)

test-gpu:  ## Run the test suite on a GPU, with the packages of PYTHON, which needs jax for GPUs; options with ARGS.
	PYTHONPATH=src:. $(PYTHON) -m pytest -o addopts="" -q -m "not slow" --platform gpu $(ARGS)

lint: .venv/installed  ## Check style, format, types and the layers of the package.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed  ## Fix style and format where that can be done automatically.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed  ## Build the documentation and run its examples.
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

picture: .venv/installed  ## Draw the picture of the README.
	$(BIN)/python docs/picture.py

lock: .venv/installed  ## Update requirements.lock to the newest versions of all dependencies.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev \
		--no-header --no-annotate --no-emit-index-url pyproject.toml -o requirements.lock

audit: .venv/installed  ## Look up known vulnerabilities of the pinned packages; needs a network.
	$(BIN)/python .ci/audit.py

clean:  ## Remove the environment and all caches.
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache docs/_build

## Speed

bench: .venv/installed  ## Measure speed as ratios; minutes. Options: python -m benchmarks.speed --help
	$(BIN)/python -m benchmarks.speed

bench-cold: .venv/installed  ## Measure the first call of a fresh process against NumPyro's first NUTS run; minutes.
	$(BIN)/python -m benchmarks.cold

bench-compare: .venv/installed  ## Compare the speed of two source trees: make bench-compare OLD=path/to/src
	$(BIN)/python -m benchmarks.compare $(OLD)

sensitivity: .venv/installed  ## Vary the tuning constants and compare eta and time; hours.
	$(BIN)/python -m benchmarks.sensitivity

## Correctness and robustness

validate: .venv/installed  ## Run statistical tests of samplers, kernels and difficult models; 40 minutes.
	$(BIN)/python -m benchmarks.validate

mutants: .venv/installed  ## Check that the tests notice deliberate errors; hours the first time, then only changes.
	$(BIN)/python -m benchmarks.validate --only mutants

seeds: .venv/installed  ## Compare eta_se with the spread of eta over seeds.
	$(BIN)/python -m benchmarks.eta_se

interfaces: .venv/installed  ## Fit six tables by Python, estimator and command line, and compare the intervals; minutes.
	$(BIN)/python -m benchmarks.interfaces

inputs: .venv/installed  ## Try invalid and unusual input in bulk.
	$(BIN)/python -m benchmarks.inputs

kills: .venv/installed  ## Kill calibrations at random times and continue them from their checkpoints.
	$(BIN)/python -m benchmarks.kills

soak: .venv/installed  ## Calibrate for minutes and watch memory and compilations.
	$(BIN)/python -m benchmarks.soak

reproduce: .venv/installed  ## Compare with another interpreter: make reproduce PYTHON_OTHER=python3.12
	$(BIN)/python -m benchmarks.reproduce $(PYTHON_OTHER)

coverage: .venv/installed  ## Measure which lines the tests run; twenty minutes.
	$(BIN)/python -m benchmarks.line_coverage

## Studies and generated pages

studies: .venv/installed  ## Run the simulation studies of the paper; hours. Options: python -m studies --help
	$(BIN)/python -m studies table1
	$(BIN)/python -m studies figure4
	$(BIN)/python -m studies figure5
	$(BIN)/python -m studies open
	$(BIN)/python -m studies misspecified
	$(BIN)/python -m studies exact
	$(BIN)/python -m studies head-to-head

pages: results bench-page trust-page robust-page  ## Write all pages that are generated from results/.

results: .venv/installed  ## Write docs/results.md, the head-to-head and the table of the README.
	$(BIN)/python -m studies page --readme README.md

bench-page: .venv/installed  ## Write the tables and plots of docs/performance.md.
	$(BIN)/python -m benchmarks.speed --page

trust-page: .venv/installed  ## Write the tables of docs/trust.md.
	$(BIN)/python -m benchmarks.validate --page

robust-page: .venv/installed  ## Write the tables of docs/robust.md.
	$(BIN)/python -m benchmarks.robust_page

.venv/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "calibayes needs Python 3.11 or later; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@
