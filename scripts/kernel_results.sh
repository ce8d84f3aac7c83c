#!/bin/sh
# Attention and few-row products on one CUDA device, as docs/benchmark_results shows them: sh scripts/kernel_results.sh OUT
#   OUT         gets a JSON file of each command; scripts/kernel_results.py makes the documents' data and tables of them
#   PYTHON=python3
# FlashInfer is measured beside ours where PYTHON can import it.
set -eu
out=$1
bench() { "${PYTHON:-python3}" -m octavo bench "$@" --json; }
mkdir -p "$out"
bench kernels --exact >"$out/decode.json"
bench kernels --kv-dtypes f16,q8_0,q4_0 --loads 1x16K,8x4K,8x32K,64x1K >"$out/codecs.json"
bench kernels --shapes 24/4/256 --kv-dtypes f16,q4_0 \
    --loads 1x4K,2x4K,4x4K,8x4K,1x32K,2x32K,4x32K,8x32K,1x128K,2x128K,4x128K,8x128K >"$out/contiguous.json"
bench gemm >"$out/gemm.json"
