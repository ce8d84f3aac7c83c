#!/bin/sh
# Watches the GPU kernels by compute-sanitizer's memcheck, which CUDA's toolkit brings; `make gpu-memcheck`.
#   PYTHON=python3      the Python that has torch, triton and pytest
#   COMPILED=1          the kernels are compiled already
set -eu
PYTHON=${PYTHON:-python3}
export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # each tensor in memory of its own, so that its end is an end

run_tests() {
    "$@" -m pytest -q -m gpu -p no:cacheprovider tests/gpu/test_kernel_bounds.py
}

# Kernels are compiled by a run that nobody watches: the compiler would be slow.
[ "${COMPILED:-}" ] || run_tests "$PYTHON"

WATCH="compute-sanitizer --tool memcheck --target-processes application-only --error-exitcode 9"
if $WATCH "$PYTHON" -m tests.gpu.planted_error; then
    echo "memcheck did not see the error that was planted" >&2
    exit 1
fi
echo "the error above was planted; now the kernels"
run_tests $WATCH "$PYTHON"
