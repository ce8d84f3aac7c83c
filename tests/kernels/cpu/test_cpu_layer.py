"""Kernels that do several others' work in one call: bit for bit what those give."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attention_cases import Heads
from linear_cases import draw_matrix, draw_rows

from octavo.kernels import rows
from octavo.kernels.cpu import library, rowwise
from octavo.kernels.cpu.attention import AttentionStep, Placement, StoredRows
from octavo.kernels.cpu.linear import PackedAffine

pytestmark = pytest.mark.skipif(library.load().functions is None, reason="no compiled kernels here")


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("width", [1, 15, 16, 33, 576])
def test_a_sum_and_its_norm_are_what_they_are_apart(inner: bool, width: int) -> None:
    x, y, weight, inner_weight = (
        draw_rows(9, width),
        draw_rows(9, width, 2),
        draw_rows(1, width, 3)[0],
        torch.ones(width),
    )
    added = rowwise.rms_norm(y, inner_weight, 1e-3) if inner else y
    total = x + added
    given = x.clone()
    normed = rows.add_rms_norm_(given, y, weight, 1e-5, inner=(inner_weight, 1e-3) if inner else None)
    assert torch.equal(given, total)
    assert torch.equal(normed, rowwise.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("count", [1, 3, 8, 64])
@pytest.mark.parametrize("gelu", [False, True])
def test_a_feed_forward_layer_is_what_its_parts_are(count: int, gelu: bool) -> None:
    gate_up = PackedAffine([draw_matrix(96, 64, 4, 32, "minimum"), draw_matrix(96, 64, 8, 32, "zero", seed=1)])
    down = PackedAffine([draw_matrix(40, 96, 6, 16, "plain", seed=2)])
    x = draw_rows(count, 64)
    apart = down.multiply(rowwise.gate(gate_up.multiply(x), gelu))
    assert torch.equal(gate_up.gated_mlp(x, gelu, down), apart)
    assert torch.equal(gate_up.gated_mlp(x[:1], gelu, down), apart[:1])


@pytest.mark.parametrize("count", [1, 8, 64, 300])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("rows_of_parts", [(96, 96), (160,), (40, 40), (48,), (16, 8, 24)])
def test_gates_are_what_they_are_after_the_product(count: int, gelu: bool, rows_of_parts: tuple[int, ...]) -> None:
    parts = [draw_matrix(n, 96, (4, 8, 5)[i], 32, "minimum", seed=i) for i, n in enumerate(rows_of_parts)]
    gate_up, x = PackedAffine(parts), draw_rows(count, 96)
    apart = rowwise.gate(gate_up.multiply(x), gelu)
    for threads in (1, 3):
        library.set_threads(threads)
        assert torch.equal(gate_up.gated(x, gelu), apart)


def test_a_thread_that_has_no_memory_yet_serves_no_rows() -> None:
    gate_up, down = (
        PackedAffine([draw_matrix(64, 96, 4, 32, "minimum")]),
        PackedAffine([draw_matrix(40, 32, 8, 32, "zero")]),
    )
    x = draw_rows(1, 96)[:0]
    with ThreadPoolExecutor(1) as fresh:
        calls = [
            lambda: gate_up.gated_mlp(x, False, down),
            lambda: gate_up.gated(x, False),
            lambda: gate_up.multiply(x),
        ]
        shapes = [tuple(fresh.submit(call).result().shape) for call in calls]
    assert shapes == [(0, 40), (0, 32), (0, 64)]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [5], [7, 1, 3]])
def test_projected_heads_are_treated_as_by_one_call_after_another(normed: bool, lengths: list[int]) -> None:
    heads, dim, num_tokens = Heads(6, 2, 32, 32), 32, sum(lengths)
    kernel = heads.kernel()
    qkv = draw_rows(num_tokens, 10 * dim).view(num_tokens, 10, dim)
    angle = draw_rows(num_tokens, dim // 2, 4) * 10
    rotation = torch.cat((angle.cos(),) * 2, -1), torch.cat((-angle.sin(), angle.sin()), -1)
    weights = rows.HeadNorms(draw_rows(1, dim, 5)[0], draw_rows(1, dim, 6)[0], 1e-5) if normed else None
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    step = AttentionStep([Placement(q0, q0 + lengths[i], 0, base=64 * i) for i, q0 in enumerate(starts)])

    def stored() -> tuple[StoredRows, StoredRows]:
        return StoredRows(torch.zeros(256, 2, dim).half()), StoredRows(torch.zeros(256, 2, dim).half())

    k, v = stored()
    apart, together = torch.empty(num_tokens, 6, dim), torch.empty(num_tokens, 6, dim)
    given = qkv.clone()
    pair = None if weights is None else (weights.q, weights.k)
    rowwise.rotate_heads_(given, 6, 2, *rotation, pair, 1e-5)
    kernel.store(given[:, 6:8], k, step)
    kernel.store(given[:, 8:], v, step)
    kernel.run(given[:, :6], k, v, step, apart)
    k_too, v_too = stored()
    kernel.run_qkv(qkv.clone(), rotation, weights, k_too, v_too, step, together)
    assert torch.equal(together, apart)
    assert torch.equal(k.data, k_too.data) and torch.equal(v.data, v_too.data)
    assert k.data.any() and v.data.any()
