# `make demo` and `make test` need nothing first but Python 3.11, its venv module and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint unit test-slurm ci bench golden docs clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || { \
	  echo 'Python 3.10 or newer with its venv module is needed: apt-get install python3 python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The main job: two simulated nodes with two ranks each learn real text, then the result is judged.
demo: setup
	$(BIN)/python examples/demo.py

test: setup lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x slurm/dev-cluster slurm/dev-cluster.d/* .ci/run

unit: setup
	$(BIN)/coverage erase
	$(BIN)/pytest -n 2 -m 'not slurm' --cov --cov-report=term:skip-covered

# On a real Slurm of this machine; needs root and slurm/dev-cluster install.
test-slurm: setup
	slurm/dev-cluster check
	$(BIN)/pytest tests/slurm

ci: test demo test-slurm

# Figures of the README; by hand, on a quiet machine.
bench: setup
	$(BIN)/python -m benchmarks

# Write golden files and generated pages anew, to be read in the diff.
golden: setup
	$(BIN)/pytest tests/golden tests/unit/test_docs.py -q --update-golden

clean:
	rm -rf $(VENV) build dist runs
