# Every target first makes .venv and installs Octavo into it, once.
#   PYTHON=python3.12   another Python (3.11 or newer)
#   TORCH_INDEX=URL     another package index for torch, such as one with builds for the CPU alone
#   MODEL, PROMPT       what `make generate` runs
#   SOAK_ARGS           of `make soak`, such as --requests 500

PYTHON ?= python3
MODEL ?= smollm2
PROMPT ?= Why is the sky blue? Answer in one sentence.
PYTEST_ARGS ?=
SOAK_ARGS ?=

# Nothing is written outside .venv and the user's cache directory.
export PYTHON TORCH_INDEX MODEL PROMPT
export HYPOTHESIS_STORAGE_DIRECTORY := .venv/cache/hypothesis
export MYPY_CACHE_DIR := .venv/cache/mypy
export RUFF_CACHE_DIR := .venv/cache/ruff

# Bytecode lies below .venv too. Without it every process would compile torch's modules and ours anew: two seconds each.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := .venv/bin/python -m pytest -o cache_dir=.venv/cache/pytest

.PHONY: generate test check docs docs-reference nightly soak gpu-test gpu-memcheck setup setup-dev clean
.DEFAULT_GOAL := generate

generate: setup ## Answer PROMPT with MODEL
	@.venv/bin/octavo generate -m "$$MODEL" -p "$$PROMPT"

test: setup-dev ## Run the tests that take seconds
	$(PYTEST) -n auto --maxprocesses 4 --dist worksteal -m "not nightly and not gpu" $(PYTEST_ARGS)

check: setup-dev ## Lint, formatting, types, import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --cache-dir .venv/cache/import_linter

docs: ## Build the documentation into .venv/cache/site; a broken link or anchor is an error
	@sh scripts/setup.sh docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet

docs-reference: setup-dev ## Write docs/reference and docs/drawings anew from the code that they describe
	.venv/bin/python -m scripts.reference

nightly: setup-dev ## Long property runs, soaks and sweeps
	OCTAVO_NIGHTLY=1 $(PYTEST) -m "nightly and not gpu" $(PYTEST_ARGS)

soak: setup-dev ## Thousands of requests of all kinds to real servers over tiny models; one line of counts each
	.venv/bin/python -m tests.soak $(SOAK_ARGS)

# They run under Triton's interpreter where there is no GPU.
KERNEL_TESTS := tests/kernels/triton tests/layers/test_gpu_routes.py tests/layers/test_residual.py tests/cases/test_reports_i.py

gpu-test: setup-dev ## Tests that need a CUDA device, and kernels' own tests on it
	$(PYTEST) -m gpu $(PYTEST_ARGS)
	$(PYTEST) -m "not gpu and not nightly" $(KERNEL_TESTS) $(PYTEST_ARGS)

gpu-memcheck: setup-dev ## Watch the GPU kernels for memory errors; needs compute-sanitizer of CUDA's toolkit
	PYTHON=.venv/bin/python sh scripts/memcheck.sh

setup:
	@sh scripts/setup.sh

setup-dev:
	@sh scripts/setup.sh dev

clean: ## Remove the virtual environment with all caches in it
	rm -rf .venv
