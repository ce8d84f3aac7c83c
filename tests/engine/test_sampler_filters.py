"""min-p, top-k and top-p against a naive float64 oracle, with ties, odd sizes and extreme settings."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from octavo.engine.sampling_filters import filters, keep_mask, rank_depth, shortlist
from octavo.engine.sampling_workspace import Workspace
from octavo.sampling_params import SamplingParams

CPU = torch.device("cpu")
TEMPERATURES = (1e-6, 0.1, 1.0, 7.3, 100.0)
TOP_PS = (1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0)
MIN_PS = (0.0, 1e-6, 0.05, 1.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Rows of a few thousand tokens gain nothing from threads, and much is lost where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def oracle(logits: np.ndarray, params: SamplingParams) -> tuple[set[int], float]:
    """Ids that stay, and how near the nearest decision was to its threshold (in probability)."""
    z = (logits.astype(np.float64) - logits.max()) / params.temperature
    likelihood = np.exp(z)
    order = sorted(range(len(z)), key=lambda i: (-logits[i], i))
    slack = 1.0
    if params.min_p > 0:
        slack = min(slack, *(abs(likelihood[i] / params.min_p - 1) or 1.0 for i in order))
        order = [i for i in order if likelihood[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        probabilities = likelihood[order] / likelihood[order].sum()
        cumulative = np.cumsum(probabilities)
        slack = min(slack, *(abs(c - params.top_p) for c in cumulative))
        order = order[: int((cumulative < params.top_p).sum()) + 1]
    return set(order), slack


def scaled(logits: np.ndarray, params: list[SamplingParams]) -> torch.Tensor:
    """[len(params), V] as the sampler prepares it."""
    rows = torch.from_numpy(logits)[None].expand(len(params), -1)
    return (rows - rows.amax(dim=1, keepdim=True)) / torch.tensor([p.temperature for p in params])[:, None]


def kept(mask: torch.Tensor) -> set[int]:
    return set(mask.nonzero()[:, 0].tolist())


def every_setting(vocab_size: int, count: int) -> list[SamplingParams]:
    top_ks = (0, 1, 5, vocab_size, vocab_size + 100)
    grid = [
        SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in itertools.product(TEMPERATURES, top_ks, TOP_PS, MIN_PS)
    ]
    return random.Random(vocab_size).sample(grid, count)


def some_logits(vocab_size: int, kind: str) -> np.ndarray:
    rng = np.random.default_rng(vocab_size)
    spread = rng.standard_normal(vocab_size) * 4
    if kind == "ties":
        spread = np.round(spread / 2) * 2
    if kind == "masked":
        spread[rng.random(vocab_size) < 0.5] = -np.inf
        spread[vocab_size // 2] = 1.0
    return spread.astype(np.float32)


@pytest.mark.parametrize("kind", ["spread", "ties", "masked"])
@pytest.mark.parametrize("vocab_size", [1, 2, 17, 1021, 5003])
def test_a_mixed_batch_keeps_in_each_row_what_the_oracle_keeps(vocab_size: int, kind: str) -> None:
    logits = some_logits(vocab_size, kind)
    params = every_setting(vocab_size, 70)
    masks = keep_mask(scaled(logits, params), params, Workspace(CPU))
    compared = 0
    for mask, setting in zip(masks, params, strict=True):
        expected, slack = oracle(logits, setting)
        if slack > 1e-5:
            assert kept(mask) == expected, setting
            compared += 1
    assert compared > 35


@pytest.mark.parametrize("kind", ["spread", "ties", "masked"])
@pytest.mark.parametrize("vocab_size", [17, 1021, 5003])
def test_a_row_keeps_the_same_tokens_alone_in_a_batch_and_by_way_of_a_short_list(vocab_size: int, kind: str) -> None:
    workspace = Workspace(CPU)
    logits = some_logits(vocab_size, kind)
    params = [p for p in every_setting(vocab_size, 150) if filters(p, vocab_size)]
    z = scaled(logits, params)
    masks = keep_mask(z, params, workspace)
    listed_rows = 0
    for row, setting in enumerate(params):
        alone = z[row : row + 1].clone()
        assert (keep_mask(alone, [setting], workspace)[0] == masks[row]).all()
        listed = shortlist(alone, setting, workspace)
        if listed is not None:
            ids, weight = listed
            assert set(ids[keep_mask(alone[:, ids], [setting], workspace, weight)[0]].tolist()) == kept(masks[row])
            listed_rows += len(ids) < vocab_size
    assert listed_rows > 20


def test_a_top_p_that_reaches_far_into_the_tail_has_no_short_list() -> None:
    z = torch.full((1, 200_001), -12.5)
    z[0, 7] = 0.0
    setting = SamplingParams(temperature=1.0, top_p=0.9)
    assert shortlist(z, setting, Workspace(CPU)) is None
    mass = 200_000 * np.exp(-12.5)
    expected = int(np.ceil((0.9 * (1 + mass) - 1) / np.exp(-12.5)))
    assert keep_mask(z, [setting], Workspace(CPU)).sum().item() == pytest.approx(expected + 1, abs=2)


def test_of_equal_logits_at_a_boundary_the_lower_ids_stay() -> None:
    z = torch.tensor([[-1.0, 0.0, -1.0, 0.0, -1.0, 0.0]])
    assert kept(keep_mask(z, [SamplingParams(temperature=1.0, top_k=2)], Workspace(CPU))[0]) == {1, 3}
    assert kept(keep_mask(z, [SamplingParams(temperature=1.0, top_k=4)], Workspace(CPU))[0]) == {0, 1, 3, 5}
    flat = torch.zeros(1, 8)
    assert kept(keep_mask(flat, [SamplingParams(temperature=1.0, top_p=0.5)], Workspace(CPU))[0]) == {0, 1, 2, 3}


def test_min_p_of_one_keeps_all_that_equal_the_best() -> None:
    z = torch.tensor([[0.0, -1e-6, 0.0, -3.0]])
    assert kept(keep_mask(z, [SamplingParams(temperature=1.0, min_p=1.0)], Workspace(CPU))[0]) == {0, 2}


def test_top_p_counts_only_what_top_k_and_min_p_left() -> None:
    z = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]) / 0.4)
    top_k_first = SamplingParams(temperature=1.0, top_k=2, top_p=0.55)  # 0.4 of the 0.7 that are left is 0.57
    assert kept(keep_mask(z, [top_k_first], Workspace(CPU))[0]) == {0}
    min_p_first = SamplingParams(temperature=1.0, min_p=0.6, top_p=0.58)
    assert kept(keep_mask(z, [min_p_first], Workspace(CPU))[0]) == {0, 1}


def test_a_row_without_filters_keeps_even_weightless_tokens_beside_filtered_rows() -> None:
    z = torch.tensor([[0.0, -200.0, -torch.inf]]).expand(3, -1)
    rows = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=2),
    ]
    assert [kept(mask) for mask in keep_mask(z, rows, Workspace(CPU))] == [{0, 1, 2}, {0}, {0, 1}]


def test_depth_orders_exactly_as_the_logits_fall() -> None:
    values = torch.tensor([[0.0, -1e-45, -1e-38, -0.5, -0.50000006, -1.0, -3e38, -torch.inf]])
    depth = rank_depth(values)[0].tolist()
    assert depth == sorted(depth) and len(set(depth)) == len(depth) and depth[0] == 0
