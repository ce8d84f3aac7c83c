"""The decode kernel for quantised K and V, under Triton's interpreter and compiled without a device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.triton.decode_tiles import DecodeTile
from octavo.kernels.triton.paged_decode import CODE_ROWS, PagedDecode
from tests.kernels.triton.decode_cases import DecodeCase
from tests.kernels.triton.gluon_interpreter import load_decode_codes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU, tests/gpu runs the kernel itself")

TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def kernel():
    return load_decode_codes().decode_codes


def errors(kernel, columns=16, **settings):
    """Largest absolute error of what the kernel gives in tiles of `columns`, and of that times 1.01."""
    case = DecodeCase(**settings)
    decode = PagedDecode(case.spec, torch.device("cpu"))
    decode._codes_kernel = kernel
    out = case.run(decode=decode, tile=DecodeTile(columns, 1, 3), chunk=64, precise=False)
    assert decode.geometry.codes
    return tuple((out.double() * factor - case.expected()).abs().max() for factor in (1.0, 1.01))


@pytest.mark.parametrize(
    ("k_codec", "v_codec", "dim"),
    [("q8_0", "q8_0", 64), ("q4_0", "q8_0", 128), ("q8_0", "q4_0", 128), ("q4_0", "q4_0", 256), ("q8_0", "q8_0", 256)],
)
def test_codes_equal_the_oracle(kernel, k_codec, v_codec, dim):
    settings = {"lengths": [70, 0, 39], "hq": 3, "hkv": 1, "dim": dim, "k_codec": k_codec, "v_codec": v_codec}
    error, one_percent_off = errors(kernel, **settings)
    assert error < TOLERANCE < one_percent_off


def test_tiles_of_several_blocks_and_of_parts_of_one_equal_the_oracle(kernel):
    for block_size in (16, 32, 64):
        settings = {"lengths": [100], "hq": 2, "hkv": 1, "dim": 64, "k_codec": "q8_0", "v_codec": "q4_0"}
        assert errors(kernel, columns=32, block_size=block_size, **settings)[0] < TOLERANCE


@pytest.mark.parametrize(
    "settings",
    [{"window": 60, "sinks": True}, {"keep": 5, "skip": 37}, {"keep": 5, "skip": 37, "window": 70}],
    ids=["window", "gap", "both"],
)
def test_hidden_columns_weigh_nothing_for_any_of_several_queries(kernel, settings):
    case = {"lengths": [90, 130], "queries": [3, 1], "hq": 2, "hkv": 1, "k_codec": "q4_0", "v_codec": "q8_0"}
    assert errors(kernel, columns=32, **case, **settings)[0] < TOLERANCE


@pytest.mark.parametrize("bad", [-5, 2**31 - 1, None], ids=str)
def test_corrupt_block_ids_hide_their_columns_and_read_nothing(kernel, bad):
    case = DecodeCase([64, 48], hq=2, hkv=1, k_codec="q8_0", v_codec="q4_0", beyond=1)
    case.table[1] = case.num_blocks if bad is None else bad
    decode = PagedDecode(case.spec, torch.device("cpu"))
    decode._codes_kernel = kernel
    difference = (case.run(decode=decode, tile=DecodeTile(16, 1, 3), precise=False).double() - case.expected()).abs()
    assert decode.geometry.codes
    assert difference[1].max() < TOLERANCE < difference[0].max()  # and no NaN


def test_more_query_rows_than_a_tile_has_take_the_other_kernel(kernel):
    case = DecodeCase(lengths=[600], queries=[3], hq=3, hkv=1, k_codec="q8_0", v_codec="q8_0")
    decode = PagedDecode(case.spec, torch.device("cpu"))
    decode._codes_kernel = kernel
    decode.plan(case.rows, precise=False)
    assert case.spec.group * 3 > CODE_ROWS
    assert not decode.geometry.codes


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import compile
from triton.experimental.gluon._runtime import GluonASTSource
from octavo.kernels.triton.decode_codes import decode_codes as kernel
kinds = {"q_ptr": "*fp32", "partial_ptr": "*fp32", "lse_ptr": "*fp32", "sinks_ptr": "*fp32", "scale_log2": "fp32"}
kinds |= {"out_ptr": "*bf16", "v_scale_ptr": "*fp16", "window": "i32", "num_blocks": "i32", "q_stride": "i32"}
for arch, dims, codecs in ((80, (64, 256), (2, 1)), (90, (128, 128), (1, 2))):
    fixed = {"HQ": 16, "HKV": 8, "QUERIES": 2, "DK": dims[0], "DV": dims[1], "BLOCK_SIZE": 16, "SUBS": 2}
    fixed |= {"K_CODEC": codecs[0], "V_CODEC": codecs[1], "HAS_WINDOW": True, "HAS_GAPS": True, "HAS_SINKS": True}
    fixed |= {"DEPENDENT": arch == 90, "STAGES": 3}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "*i32") for name in names}
    source = GluonASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, {})
    # Stages of 32 rows of K, words and pairs of scales; nothing else is exchanged through shared memory.
    shared = 3 * 32 * 4 * (dims[0] // 4 // codecs[0] + dims[0] // 64)
    assert compile(source, GPUTarget("cuda", arch, 32), {"num_warps": 1}).metadata.shared == shared
"""


def test_it_compiles_for_ampere_and_hopper_and_exchanges_nothing_between_lanes_but_keys():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
