# make smoke        every phase on this machine, through submitit's local executor
# make test         all but the slow tests, on a real Slurm too where this machine can have one
# make test-all     those that take longer too: accounting, isolated nodes, every staged fault
# make test-oldest  the ladder and the rank side's tests on the oldest versions that are supported
#                   (constraints-oldest.txt; Python 3.10 to 3.12; downloads about 3 GB)
# make lint         ruff and mypy --strict
# make bench        what a phase costs beyond its own work, reading NCCL's logs, watching gradients
# make faults       every staged fault, and docs/reference/staged-faults.md from what was measured
# make soak         the ladder 20 times on the lab
# TORCH=cuda        with any of them: the newest torch instead of the one of constraints-cpu.txt
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu   with any of them: its CPU build

SHELL := /bin/bash
VENV ?= .venv
OLDEST ?= .venv-oldest
PYTHON ?= python3
TORCH ?= cpu
WORKERS ?= 2
SOAK ?= 20
BIN := $(VENV)/bin
CONSTRAINTS := $(if $(filter cuda,$(TORCH)),,-c constraints-cpu.txt)
INSTALLED := $(VENV)/.installed-$(TORCH)
PYTEST := $(BIN)/python -m pytest
# A file's tests stay on one worker, which shares what they start.
TESTS := $(PYTEST) tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help install smoke test test-all test-oldest lint format bench faults soak slurm browser clean

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; say which: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[train,dev]'
	@touch $@

smoke: $(INSTALLED)
	$(PYTEST) smoke_tests --cluster local

# Debian's packages of Slurm, where this is Debian and we are root; elsewhere the tests say what is
# left out (and fail with CLUSTERSMOKE_REQUIRE_LAB=1).
slurm: $(INSTALLED)
	@$(BIN)/clustersmoke lab install || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"

# Debian's package of Chromium, likewise (and fail with CLUSTERSMOKE_REQUIRE_BROWSER=1).
browser: $(INSTALLED)
	@$(BIN)/python -m tests.support.browser || test -z "$$CLUSTERSMOKE_REQUIRE_BROWSER"

test: slurm browser
	$(TESTS) -m 'not slow and not slow_lab'

test-all: slurm browser
	@$(BIN)/clustersmoke lab install --accounting --isolated || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"
	$(TESTS)

# On CPU, though torch 2.2 comes as its CUDA build, the only one on PyPI;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves most of the 3 GB.
# setuptools: DeepSpeed 0.14 imports distutils, which Python 3.12 has from there alone.
$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || \
	  { echo "torch 2.2 needs Python 3.10 to 3.12; say which: make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(OLDEST) || \
	  { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
	  -e '.[train,dev]' setuptools
	@touch $@

test-oldest: $(OLDEST)/.installed
	CUDA_VISIBLE_DEVICES= $(OLDEST)/bin/python -m pytest smoke_tests --cluster local
	$(OLDEST)/bin/python -m pytest tests/rank tests/smoke -n $(WORKERS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: slurm
	$(BIN)/python benchmarks/nccl_reader.py
	$(BIN)/python benchmarks/overhead.py
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node=2 \
	  benchmarks/gradient_watch.py --hidden-size 1024 --steps 4 --turns 21

faults: slurm
	@$(BIN)/clustersmoke lab install --accounting --isolated || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"
	$(BIN)/python -m benchmarks.faults

soak: slurm
	SOAK=$(SOAK) $(PYTEST) tests/soak.py

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache build dist
