PYTHON ?= python3
VENV ?= .venv
# TORCH=cpu takes PyTorch from its own index of builds without CUDA, as its install selector says; INDEX names any other.
TORCH ?=
INDEX ?= $(if $(TORCH),https://download.pytorch.org/whl/$(TORCH))
# Bytecode of what is imported is written then: of all that is installed, it would take longer than the tests need.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
# Set in many containers: then every process of the tests compiles all it imports anew, a second each.
unexport PYTHONDONTWRITEBYTECODE
# Processes of tests have one thread each: more would fight over the cores.
ONE_PYTEST = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(RUN) pytest
# One per core.
PYTEST = $(ONE_PYTEST) -n auto --maxprocesses 8 --dist worksteal
# The software that exported checkpoints are tested with; its own dependencies would replace ours and are not used.
PEERS := rwkv==0.8.32 flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2

.DEFAULT_GOAL := help
.PHONY: help demo docs tutorials test test-all test-portable test-wheel test-slurm lint types size bench gpu clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  with TORCH=cpu      PyTorch's build without CUDA, a smaller download (INDEX=URL: from any index)"
	@echo "  with VENV=PATH      that environment instead of .venv; what it has of constraints.txt is kept"

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(INDEX),$(PIP) -c constraints.txt --index-url $(INDEX) torch)
	$(PIP) -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -c constraints.txt -e ".[dev]"
	$(PIP) --no-deps $(PEERS)
	touch $@

# Neither the package nor torch: pages, docstrings and the types of specs are all that the site is made of.
$(VENV)/installed-docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt numpy scipy pydantic $$($(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	touch $@

docs: $(VENV)/installed-docs  ## the documentation, docs/_build/html/index.html; warnings are errors
	$(RUN) sphinx -W --keep-going -q -j auto -b html docs docs/_build/html
	@echo "written: docs/_build/html/index.html"

tutorials: $(VENV)/installed-dev  ## run the notebooks in docs/tutorials again, with their outputs and figures (minutes)
	PYTHONWARNINGS=ignore:IProgress PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -c 'import sys, nbclient, nbformat as files; \
		[files.write(nbclient.NotebookClient(files.read(name, 4), coalesce_streams=True, record_timing=False).execute(), name) \
		for name in sys.argv[1:]]' docs/tutorials/*.ipynb

demo: $(VENV)/installed  ## set up, try initialisations of a model on Python's library and print the path of the report (5 minutes)
	$(RUN) plkernel.trial stdlib --minutes 5
	@echo; echo "The answer stands first in runs/out/trial-stdlib/report/report.html. Now try, with $(BIN)/python:"
	@echo "  python -m plkernel.trial PATH               the same on a text of yours"
	@echo "  python -m plkernel.inspect PATH             half-lives of a checkpoint of yours"
	@echo "  python -m plkernel.probe runs/out/trial-stdlib/log-spaced/seed-0      how far back a model of the demo reads"
	@echo "  python -m plkernel.generate runs/out/trial-stdlib/log-spaced/seed-0 --prompt 'def '"

test: $(VENV)/installed-dev  ## set up and run the tests (minutes)
	$(PYTEST) -m "not slow"

test-all: $(VENV)/installed-dev  ## every test, the slow ones too
	$(PYTEST)

SLURM := slurmctld slurmd slurm-client munge

test-slurm: $(VENV)/installed-dev  ## a study on a real Slurm of one node (root; installs Debian's packages if missing)
	command -v sbatch >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends $(SLURM))
	OMP_NUM_THREADS=1 $(RUN) pytest tests/study/test_slurm.py

# An older processor than this one: without NUMBA_CPU_FEATURES numba would add those of this one to the name.
AVX2 := OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= \
	MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
SSE := OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES= \
	MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41

# In one process: several would each compile the kernels.
test-portable: $(VENV)/installed-dev  ## numbers of the kernels on x86 without AVX-512 (CPU=SSE: without AVX and FMA)
	$($(or $(CPU),AVX2)) $(ONE_PYTEST) tests/kernels -m "not slow" \
		-k "(equal_float64 or two_parts or batch_of_gradients) and not (interpreted or torch.float64)"

test-wheel: $(VENV)/installed-dev  ## the package as a wheel, used from another directory
	.ci/wheel $(BIN)/python

lint: $(VENV)/installed-dev  ## style of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev  ## static types, also of what writes the evidence from its records
	$(BIN)/mypy
	$(BIN)/mypy runs/records/*.py

size:  ## lines of source and tests in each folder
	@$(PYTHON) tests/size.py

bench: $(VENV)/installed-dev  ## kernels and a training step against their peers, checked before timed
	$(RUN) plkernel.bench scan --out runs/out/bench
	$(RUN) plkernel.bench wkv --out runs/out/bench
	$(RUN) plkernel.bench wkv7 --out runs/out/bench
	$(RUN) plkernel.bench train --out runs/out/bench
	$(RUN) plkernel.bench train --spec finch --out runs/out/bench
	$(RUN) plkernel.bench train --spec goose --out runs/out/bench

gpu:  ## on a GPU: benchmarks, studies and equality tests (or PARTS) that fit into MINUTES (40); installs nothing
	$(PYTHON) runs/gpu.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(WORKERS),--workers $(WORKERS)) $(PARTS)

clean:  ## remove .venv and everything generated, but not runs/out
	rm -rf docs/_build docs/api docs/studies/_options.md .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
