#!/bin/sh
# Whole-engine figures on one CUDA device, as docs/benchmark_results shows them: sh scripts/engine_results.sh CONFIGS OUT
#   CONFIGS     holds qwen3-1.7b/config.json and llama3-8b/config.json, as the models have them
#   OUT         gets a JSON file of each command; `python -m scripts.engine_results OUT/*.json` makes records of them
#   PYTHON=python3
set -eu
configs=$1 out=$2
bench() { "${PYTHON:-python3}" -m octavo bench "$@" --dtype bfloat16 --device cuda --json; }
mkdir -p "$out"
for model in qwen3-1.7b llama3-8b; do
    # A run that is not kept compiles the kernels.
    bench decode --random-weights --config "$configs/$model" --new-tokens 32 --repeats 1 --requests 256 >/dev/null
    bench decode --random-weights --config "$configs/$model" --new-tokens 256 --repeats 3 --requests 256 \
        --lengths 100-1024 >"$out/$model.json"
done
for through in server engine; do
    bench routes --config "$configs/qwen3-1.7b" --through $through >"$out/routes-$through.json"
done
