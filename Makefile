# make smoke        every phase on this machine, through submitit's local executor
# make test         all tests except the slow ones, also on a real Slurm if this machine can run one
# make test-all     all tests, also the slow ones: accounting, isolated nodes, every staged fault.
#                   PART=NAME runs a part: a folder of tests/ (faults, lab, smoke, session, ...), a
#                   file of it (ladder, plugin, ...), or a mark (slow, slow_lab: what make test omits)
# make test-oldest  all phases but those of FSDP and Megatron, which need torch 2.6, and the tests of
#                   the rank API, on the oldest supported versions (constraints-oldest.txt; Python
#                   3.10 to 3.12; downloads about 3 GB)
# make pages        sample reports of real runs in pages/, each tested in a browser, and the pictures
#                   of the documents made from them; took 9 minutes (562 s) on two cores
# make lint         ruff and mypy --strict
# make bench        overhead of a phase, calls of the scheduler (also ReFrame's, installed with pip
#                   into a temporary environment), speed of reading NCCL's logs, cost of a proof,
#                   how soon pytest sees ends and deaths, what the ladder and the start of a job cost
#                   beyond raw sbatch,
#                   how often a rank that computes wrongly is named, which slow ranks would be,
#                   false alarms and power of the history check (simulated), how often the bad
#                   node, link or switch is named (simulated) and how often a healthy device,
#                   how time and memory grow with ranks, phases and past runs
# make faults       stages every fault and writes the results to docs/reference/staged-faults.md
# make soak         on the lab, all phases 20 times, and eight ranks of which one is slow; on this
#                   machine, ten jobs for each way in which a rank computes wrongly; goes on where
#                   it stopped. BACKEND=local or ssh: all phases on this machine, or on hosts
#                   without a scheduler. SOAK_STATE=DIR: keep what has passed there, so that another
#                   clone of the same commit can go on
# make soak-chaos   200 short jobs on a lab of which clients, ranks, slurmstepd, slurmd and slurmctld
#                   are killed meanwhile; SEED=N (1) chooses the schedule, which is printed. About
#                   8 minutes a seed
# TORCH=cuda        with any target: the newest torch instead of the one in constraints-cpu.txt
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu   with any target: torch's CPU build

SHELL := /bin/bash
VENV ?= .venv
OLDEST ?= .venv-oldest
PYTHON ?= python3
TORCH ?= cpu
# Much of a run waits, so three keep two cores busy.
WORKERS ?= 3
SOAK ?= 20
BACKEND ?= lab
SOAK_STATE ?=
SEED ?= 1
PART ?=
IN_STATE := $(if $(SOAK_STATE),-o cache_dir=$(abspath $(SOAK_STATE)))
BIN := $(VENV)/bin
CONSTRAINTS := $(if $(filter cuda,$(TORCH)),,-c constraints-cpu.txt)
INSTALLED := $(VENV)/.installed-$(TORCH)
PYTEST := $(BIN)/python -m pytest
# All tests of a file run on one worker, so that they share what they start.
TESTS := $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What `make test-all` runs. The folder tests/lab has the name of a mark, and comes first.
CHOSEN := tests
ifneq ($(PART),)
CHOSEN := $(wildcard tests/$(PART) tests/test_$(PART).py)
ifneq ($(filter slow slow_lab,$(PART)),)
CHOSEN := tests -m $(PART)
endif
ifeq ($(CHOSEN),)
$(error PART=$(PART): expected a folder of tests/, a file of it (ladder for tests/test_ladder.py), \
  slow or slow_lab)
endif
endif

# The tests start hundreds of processes that import the package; each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install smoke test test-all test-oldest pages lint format bench faults soak soak-chaos slurm browser ssh \
	prometheus readers clean

help:
	@sed -n '/^$$/q; s/^# //p' Makefile

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed: for example, make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[train,megatron,dev]'
	@touch $@

smoke: $(INSTALLED)
	$(PYTEST) smoke_tests --cluster local

# Installs Debian's Slurm packages, if this is Debian and we are root. Elsewhere the tests that need
# them are skipped with a reason (with CLUSTERSMOKE_REQUIRE_LAB=1, they fail).
slurm: $(INSTALLED)
	@$(BIN)/clustersmoke lab install || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"

# The same for Debian's Chromium package (CLUSTERSMOKE_REQUIRE_BROWSER=1).
browser: $(INSTALLED)
	@$(BIN)/python -m tests.support.browser || test -z "$$CLUSTERSMOKE_REQUIRE_BROWSER"

# The same for Debian's OpenSSH packages, whose server the tests of `backend: ssh` start themselves
# (CLUSTERSMOKE_REQUIRE_LAB=1).
ssh: $(INSTALLED)
	@$(BIN)/python -m tests.support.ssh_servers || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"

# The same for Debian's Prometheus and its node exporter, which test the alert rules, the dashboard
# and the textfile (CLUSTERSMOKE_REQUIRE_PROMETHEUS=1).
prometheus: $(INSTALLED)
	@$(BIN)/python -m tests.support.prometheus || test -z "$$CLUSTERSMOKE_REQUIRE_PROMETHEUS"

test: slurm browser ssh
	$(TESTS) tests -m 'not slow and not slow_lab'

test-all: slurm browser ssh prometheus readers
	@$(BIN)/clustersmoke lab install --accounting --isolated || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"
	$(TESTS) $(CHOSEN)

# The tests run on the CPU, but PyPI has torch 2.2 only as a CUDA build;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves most of the 3 GB.
# DeepSpeed 0.14 imports distutils, which in Python 3.12 only setuptools provides.
$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || \
	  { echo "torch 2.2 needs Python 3.10 to 3.12: for example, make PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(OLDEST) || \
	  { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 2; }
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt \
	  -e '.[train,dev]' setuptools
	@touch $@

test-oldest: $(OLDEST)/.installed
	CUDA_VISIBLE_DEVICES= $(OLDEST)/bin/python -m pytest smoke_tests --cluster local -m 'not fsdp'
	$(OLDEST)/bin/python -m pytest tests/rank tests/smoke -n $(WORKERS)

# Programs that show junit.xml: Allure and xunit-viewer, from npm (CLUSTERSMOKE_REQUIRE_READERS=1).
readers: $(INSTALLED)
	@$(BIN)/python -m tests.support.junit_readers || test -z "$$CLUSTERSMOKE_REQUIRE_READERS"

pages: slurm browser readers
	rm -rf pages
	CLUSTERSMOKE_PAGES=$(abspath pages) $(PYTEST) tests/report/test_sample_pages.py
	$(BIN)/python -m tests.report.shoot pages docs/pictures

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: slurm
	$(BIN)/clustersmoke sensitivity
	$(BIN)/python benchmarks/nccl_reader.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python -m benchmarks.scheduler_calls
	$(BIN)/python -m benchmarks.latency --trials 3
	$(BIN)/python -m benchmarks.ladder_cost --pairs 1
	$(BIN)/python benchmarks/drift.py --short
	$(BIN)/python -m benchmarks.isolation --plantings 540
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.peaks
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node=2 \
	  -m benchmarks.proof_cost --blocks 40
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption

faults: slurm
	@$(BIN)/clustersmoke lab install --accounting --isolated || test -z "$$CLUSTERSMOKE_REQUIRE_LAB"
	$(BIN)/python -m benchmarks.faults

soak: slurm ssh
	SOAK=$(SOAK) BACKEND=$(BACKEND) $(PYTEST) tests/soak.py $(IN_STATE)

soak-chaos: slurm
	$(BIN)/python -m tests.survival.chaos --seed $(SEED)

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .ruff_cache .pytest_cache build dist
