"""Every form of a product, and of attention from one, compiles for a GPU: Triton's interpreter accepts kernels that
its compiler refuses.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="triton is not installed")

EXACT = """
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
    fixed |= {"FOLDS": tile.folds, "EARLY": form == "early", "ADD": split}
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, {})
    compile(source, GPUTarget("cuda", 90, 32), {"num_warps": tile.num_warps})
assert {form[0] for form in forms} == {"early", "swapped"} and any(folds for _, _, folds in forms), forms
"""


SUMS = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from octavo.kernels.triton.gated_sums import gated_sums
from octavo.kernels.triton.skinny_dense import skinny_reduce

kinds = {name: "*bf16" for name in ("x_ptr", "w_ptr", "weighted_ptr")} | {"eps": "fp32", "arrived_ptr": "*i32"}
kinds |= {name: "*fp32" for name in ("partial_ptr", "norm_ptr", "squares_ptr")}
tile = {"BLOCK_M": 1, "BLOCK_N": 8, "BLOCK_K": 256, "EVEN": True, "DEPENDENT": True, "SPLITS": 1, "GELU": False}
tile |= {"TILES": 3, "AHEAD": 2, "LETS_IN": True}
for kernel in (skinny_reduce, gated_sums):
    names = kernel.arg_names
    for leaves, parts in ((False, 0), (True, 0), (False, 512)):
        fixed = tile | {"ADD": leaves, "LEAVES": leaves, "PARTS": parts}
        signature = {name: kinds.get(name, "i32") for name in names} | {"y_ptr": "*fp32" if leaves else "*bf16"}
        signature |= {name: "constexpr" for name in fixed if name in names}
        values = {(names.index(name),): value for name, value in fixed.items() if name in names}
        compile(ASTSource(kernel, signature, values, {}), GPUTarget("cuda", 90, 32), {"num_warps": 2})
"""


# All tiles of the table, which no other test reaches without such a GPU.
STREAMED = """
from itertools import chain
from triton.backends.compiler import GPUTarget
from triton.compiler import compile
from triton.experimental.gluon._runtime import GluonASTSource
from octavo.kernels.triton import streamed_table
from octavo.kernels.triton.streamed_dot import streamed_dot as kernel
from octavo.kernels.triton.streamed_product import LAYOUT

names, tiles = kernel.arg_names, set()
for gated, table in ((False, streamed_table.PRODUCTS), (True, streamed_table.GATED)):
    tiles |= {(gated, tile) for tile in chain.from_iterable(each.values() for each in table.values())}
for gated, tile in tiles:
    fixed = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "STAGES": tile.num_stages}
    fixed |= {"GATED": gated, "GELU": False, "DEPENDENT": True}
    signature = {name: "constexpr" if name in fixed else "i32" for name in names}
    for name, rows in (("x_desc", tile.block_m), ("w_desc", tile.block_n)):
        signature[name] = f"tensordesc<bf16[{rows}, {tile.block_k}],{LAYOUT!r}>"
    signature["y_ptr"] = "*fp32" if tile.splits > 1 else "*bf16"
    source = GluonASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, {})
    done = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": tile.num_warps})
    assert done.metadata.shared <= 232448, (tile, done.metadata.shared)
assert {gated for gated, _ in tiles} == {False, True}
"""


PROJECTED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from octavo.kernels.triton.decode_projected import decode_projected as kernel

names = kernel.arg_names
kinds = {name: "*fp32" for name in names if name.endswith(("bias_ptr", "cos_ptr", "sin_ptr", "norm_ptr", "lse_ptr"))}
kinds |= {"partial_ptr": "*fp32", "qkv_ptr": "*bf16", "out_ptr": "*bf16", "table_ptr": "*i32", "items_ptr": "*i32"}
kinds |= {"positions_ptr": "*i64", "rows_ptr": "*i64", "eps": "fp32", "scale_log2": "fp32"}
fixed = {"HQ": 4, "HKV": 2, "DIM": 64, "BLOCK_SIZE": 16, "BLOCK_M": 16, "BLOCK_N": 32, "STAGES": 2, "DEPENDENT": True}
found = []
for stored in ("*fp16", "*bf16"):
    for more in (False, True):
        given = fixed | {"PRECISE": more, "HAS_NORMS": more, "HAS_BIAS": more, "AHEAD": 1}
        signature = {name: kinds.get(name, "i32") for name in names} | {"k_ptr": stored, "v_ptr": stored}
        signature |= {name: "constexpr" for name in given}
        source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in given.items()}, {})
        text = compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 2}).asm["ptx"]
        found.append(text.count("mma.sync"))
# Queries are two operands for bfloat16 keys, and where results are to be precise; so are weights, then.
assert found[0] < found[2] < found[1] == found[3], found
"""


@pytest.mark.parametrize("script", [EXACT, SUMS, STREAMED, PROJECTED], ids=["exact", "sums", "streamed", "projected"])
def test_every_form_compiles_for_hopper(tmp_path, script):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # what was compiled before says nothing
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
