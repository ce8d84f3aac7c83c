"""Every form of a product compiles for a GPU: Triton's interpreter accepts kernels that its compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from octavo.kernels.triton.skinny_dense import skinny_dot as kernel
from octavo.kernels.triton.skinny_table import exact_tile

names = kernel.arg_names
kinds = {"x_ptr": "*bf16", "w_ptr": "*bf16", "y_ptr": "*bf16", "partial_ptr": "*fp32", "arrived_ptr": "*i32"}
tiles = {exact_tile(n, k, rows, 232448) for n, k in ((2048, 2048), (12288, 2048)) for rows in (1, 64, 256, 4096)}
forms = {(tile.form, tile.splits > 1, tile.folds > 1): tile for tile in sorted(tiles, key=lambda tile: tile.block_m)}
for form, split, folds in forms:
    tile = forms[form, split, folds]
    fixed = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "SPLITS": tile.splits}
    fixed |= {"EVEN": True, "WEIGHT_IS_FIRST": form != "dot", "STAGES": tile.num_stages, "DEPENDENT": True}
    fixed |= {"FOLDS": tile.folds, "EARLY": form == "early"}
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, {})
    compile(source, GPUTarget("cuda", 90, 32), {"num_warps": tile.num_warps})
assert {form[0] for form in forms} == {"early", "swapped"} and any(folds for _, _, folds in forms), forms
"""


def test_every_form_of_an_exact_product_compiles_for_hopper(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # what was compiled before says nothing
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
