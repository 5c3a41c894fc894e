.PHONY: demo test lint format docs bench bench-page seeds kills inputs soak reproduce coverage robust-page audit validate \
	mutants results picture lock clean
PYTHON ?= python3
BIN := .venv/bin

demo: .venv/installed
	$(BIN)/calibayes demo

test: .venv/installed
	$(BIN)/pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: .venv/installed
	$(BIN)/calibayes bench

bench-page: .venv/installed
	$(BIN)/calibayes bench --page

seeds: .venv/installed
	$(BIN)/python -m benchmarks.eta_se

kills: .venv/installed
	$(BIN)/python -m benchmarks.kills

# Bad input in bulk, and how it ended; minutes of calibrations, and what they leave behind; the page of both.
inputs: .venv/installed
	$(BIN)/python -m benchmarks.inputs

soak: .venv/installed
	$(BIN)/python -m benchmarks.soak

# The suite, and which lines of the library it does not run.
coverage: .venv/installed
	$(BIN)/python -m benchmarks.covered

# Does another interpreter find the same? make reproduce PYTHON_OTHER=python3.12
reproduce: .venv/installed
	$(BIN)/python -m benchmarks.reproduce $(PYTHON_OTHER)

robust-page: .venv/installed
	$(BIN)/python -m benchmarks.robust

# Known vulnerabilities of what is pinned; needs a network, and says so where there is none.
audit: .venv/installed
	$(BIN)/python .ci/audit.py

validate: .venv/installed
	$(BIN)/python -m benchmarks.validate

mutants: .venv/installed
	$(BIN)/python -m benchmarks.validate --only mutations

results: .venv/installed
	$(BIN)/calibayes study page --readme README.md

.venv/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "calibayes needs Python 3.11 or later; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# Pin anew what is installed; needs uv (pip install uv).
lock:
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev \
		--no-header --no-annotate --no-emit-index-url pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache docs/_build

picture: .venv/installed
	$(BIN)/python docs/picture.py
