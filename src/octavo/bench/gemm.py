"""Spread of products of few rows beside the library's, in one process on one CUDA device. Prints nothing.

Weights are read cold: a graph walks over copies of them, more than the caches hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from octavo.bench.cuda_timing import read_ceiling, timed_graph
from octavo.bench.outcome import Outcome
from octavo.bench.percentiles import Spread
from octavo.bench.stamp import environment_stamp
from octavo.kernels.triton.skinny_gemm import SkinnyScratch, SkinnyTile, multiply, multiply_codes
from octavo.kernels.triton.skinny_pack import CodeMatrix, PackedCodes, pack_codes, unpack_codes
from octavo.kernels.triton.skinny_table import bucket, codes_tiles, dense_tiles, exact_tile

COLD_BYTES = 480 << 20
_LARGEST_DIFFERENCE = 5e-3  # of a bfloat16 result, relative: an error, not rounding
_CHECKED = 2048  # weight rows


@dataclass(frozen=True, slots=True)
class GemmShape:
    """One weight [n, k] of a model."""

    name: str
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class CodeForm:
    """Codes of `bits` in groups that share a scale, and a minimum where `minimum`."""

    name: str
    bits: int
    group: int
    minimum: bool


SHAPES = (
    GemmShape("Qwen3-1.7B qkv", 4096, 2048),
    GemmShape("Qwen3-1.7B o", 2048, 2048),
    GemmShape("Qwen3-1.7B gate_up", 12288, 2048),
    GemmShape("Qwen3-1.7B down", 2048, 6144),
    GemmShape("Qwen3-1.7B head", 151936, 2048),
    GemmShape("Llama-3-8B qkv", 6144, 4096),
    GemmShape("Llama-3-8B o", 4096, 4096),
    GemmShape("Llama-3-8B gate_up", 28672, 4096),
    GemmShape("Llama-3-8B down", 4096, 14336),
    GemmShape("Llama-3-8B head", 128256, 4096),
)
CODE_FORMS = (
    CodeForm("Q4_0", 4, 32, False),
    CodeForm("Q4_1", 4, 32, True),
    CodeForm("Q8_0", 8, 32, False),
    CodeForm("affine 4-bit g64", 4, 64, True),
)


@dataclass(frozen=True, slots=True)
class GemmCell:
    """A weight times `rows` rows. `library` is torch's product of bfloat16; `ours` by form, `exact` among them.

    `chosen` says which setting serves bfloat16: None where the library's is kept. `num_bytes` of the weight by form.
    """

    shape: GemmShape
    rows: int
    library: Spread
    ours: dict[str, Spread]
    num_bytes: dict[str, int]
    chosen: str | None


@dataclass
class GemmRun:
    """What is measured, and the cells so far."""

    shapes: Sequence[GemmShape]
    rows: Sequence[int]
    forms: Sequence[CodeForm]
    cells: list[GemmCell] = field(default_factory=list)
    ceiling_gbps: float = 0.0
    environment: dict[str, object] = field(default_factory=environment_stamp)
    outcome: Outcome = field(default_factory=Outcome)

    def as_object(self) -> dict[str, object]:
        """With one flat record for each cell."""
        return {
            **self.outcome.as_object(),
            "environment": self.environment,
            "read_ceiling_gbps": self.ceiling_gbps,
            "cells": [
                {
                    "shape": cell.shape.name,
                    "n": cell.shape.n,
                    "k": cell.shape.k,
                    "rows": cell.rows,
                    "library_us": _rounded(cell.library),
                    "ours_us": {name: _rounded(each) for name, each in cell.ours.items()},
                    "weight_bytes": cell.num_bytes,
                    "chosen": cell.chosen,
                }
                for cell in self.cells
            ],
        }


def bench_gemm(run: GemmRun, progress: Callable[[GemmCell], None]) -> None:
    """Measure every cell of `run`. Raises `AssertionError` where a product of ours is off."""
    torch.manual_seed(0)
    run.environment |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with run.outcome as outcome:
        run.ceiling_gbps = round(read_ceiling(), 1)
        scratch = SkinnyScratch(torch.device("cuda"))
        for shape in run.shapes:
            outcome.where = f"{shape.name}, bfloat16"
            torch.cuda.empty_cache()
            cells = {rows: _dense(shape, rows, weights, scratch) for weights in [_weights(shape)] for rows in run.rows}
            for form in run.forms:
                outcome.where = f"{shape.name}, {form.name}"
                torch.cuda.empty_cache()
                packed = _packed(shape, form)
                for rows, cell in cells.items():
                    cell.ours[form.name] = _codes(shape, rows, packed, scratch)
                    cell.num_bytes[form.name] = packed[0].num_bytes
                del packed
            for cell in cells.values():
                run.cells.append(cell)
                progress(cell)


def _dense(shape: GemmShape, rows: int, weights: Tensor, scratch: SkinnyScratch) -> GemmCell:
    x = torch.randn(rows, shape.k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, shape.n, device="cuda", dtype=torch.bfloat16)
    library = timed_graph([partial(torch.mm, x, weight.t(), out=out) for weight in weights])
    tile = dense_tiles(shape.n, shape.k, scratch.shared_bytes)[bucket(rows)]
    exact = exact_tile(shape.n, shape.k, rows, scratch.shared_bytes)
    ours = {}
    for name, setting in (("bf16", tile), ("bf16 exact", exact)):
        if setting is None:
            continue
        scratch.reserve(setting, rows, shape.n)
        calls = [partial(multiply, x, weight, out, setting, scratch) for weight in weights]
        ours[name] = _ours(calls, x, out, weights[0])
    return GemmCell(shape, rows, library, ours, {"bf16": shape.n * shape.k * 2}, None if tile is None else _name(tile))


def _codes(shape: GemmShape, rows: int, packed: list[PackedCodes], scratch: SkinnyScratch) -> Spread:
    x = torch.randn(rows, shape.k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, shape.n, device="cuda", dtype=torch.bfloat16)
    tile = codes_tiles(shape.n, shape.k, packed[0].bits, scratch.shared_bytes)[bucket(rows)]
    scratch.reserve(tile, rows, shape.n)
    calls = [partial(multiply_codes, x, weight, out, tile, scratch) for weight in packed]
    return _ours(calls, x, out, packed[0])


def _ours(calls: Sequence[Callable[[], object]], x: Tensor, out: Tensor, weight: Tensor | PackedCodes) -> Spread:
    """Microseconds, once the first call's result has been compared."""
    out.fill_(torch.nan)
    calls[0]()
    part = unpack_codes(weight, slice(0, _CHECKED)) if isinstance(weight, PackedCodes) else weight[:_CHECKED].float()
    expected = x.float() @ part.t()
    difference = float((out[:, :_CHECKED].float() - expected).norm() / expected.norm())
    assert difference < _LARGEST_DIFFERENCE, f"a product is off by {difference:.1e}"
    assert not bool(out.isnan().any()), "a product is not whole"
    return timed_graph(calls)


def _weights(shape: GemmShape) -> Tensor:
    copies = max(2, -(-COLD_BYTES // (shape.n * shape.k * 2)))
    weights = torch.empty(copies, shape.n, shape.k, device="cuda", dtype=torch.bfloat16)
    for weight in weights:
        weight.normal_(std=shape.k**-0.5)
    return weights


def _packed(shape: GemmShape, form: CodeForm) -> list[PackedCodes]:
    codes = torch.randint(0, 1 << form.bits, (shape.n, shape.k), dtype=torch.uint8, device="cuda")
    scale = torch.rand(shape.n, shape.k // form.group, device="cuda").mul_(0.01).half().float()
    minimum = -scale * 7 if form.minimum else None
    matrix = CodeMatrix(codes, scale, minimum, 0 if form.minimum else 1 << (form.bits - 1), form.bits, form.group)
    first = pack_codes([matrix], torch.device("cuda"))
    copies = max(2, -(-COLD_BYTES // first.num_bytes))
    return [first, *(replace(first, codes=first.codes.clone(), scales=first.scales.clone()) for _ in range(copies - 1))]


def _name(tile: SkinnyTile) -> str:
    size = f"{tile.block_m}x{tile.block_n}x{tile.block_k}"
    return f"{tile.form} {size}, {tile.num_warps} warps, {tile.num_stages} stages, {tile.splits} splits"


def _rounded(spread: Spread) -> dict[str, float]:
    return {name: round(value, 2) for name, value in spread.as_object().items()}
