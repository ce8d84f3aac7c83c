"""What an engine shows of itself between two steps: blocks, requests and their progress, the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.cache.block_map import STATES
from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.engine.machine import MAX_REQUESTS
from octavo.engine.served_model import ServedCore
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.tiny_engines import prompt_of
from tests.tiny_models import save_hf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shown") / "tiny"
    save_hf(path, "llama", num_hidden_layers=1)
    return path


def engine(path: Path, **settings: object) -> ServedCore:
    config = replace(EngineConfig(threads=1, max_context=128, max_num_seqs=2), **settings)
    return ServedCore(load_model(plan_model(path, config), config), config)


def ask(core: ServedCore, name: str, length: int = 20, max_tokens: int | None = 6, priority: int = 0) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    core.add(Request(name, prompt_of(length), params, seed=0, priority=priority))


def test_requests_are_told_with_their_progress_running_ones_first(path: Path) -> None:
    core = engine(path)
    for name, length, limit in (("a", 20, 6), ("b", 33, None), ("c", 5, 2)):
        ask(core, name, length, limit, priority=3 if name == "c" else 0)
    assert {each.stage for each in core.machine().requests} == {"waiting"}
    core.step()
    core.step()
    a, b, c = core.machine().requests
    assert (a.request_id, a.stage, a.prompt, a.computed, a.generated, a.max_generated) == ("a", "running", 20, 21, 2, 6)
    assert (b.stage, b.prompt, b.max_generated) == ("running", 33, 128 - 33)
    assert (c.request_id, c.stage, c.priority, c.computed, c.generated, c.cached) == ("c", "waiting", 3, 0, 0, None)
    assert a.cached == 0 and a.age_s >= b.age_s > 0


def test_the_map_and_the_statistics_tell_the_same_blocks(path: Path) -> None:
    core = engine(path)
    ask(core, "a", 40)
    ask(core, "b", 40)  # the same prompt
    for _ in range(4):
        core.step()
        view, usage = core.machine(), core.usage()
        for drawn, blocks in zip(view.maps, usage.blocks, strict=True):
            told = dict(zip(STATES, drawn.counts, strict=True))
            assert (told["free"], told["cached"]) == (blocks.free, blocks.cached)
            assert told["live"] + told["shared"] + told["pinned"] == blocks.live
    assert view.maps[0].owners and all(set(names) <= {"a", "b"} for names in view.maps[0].owners)
    core.abort("a")
    core.abort("b")
    after = core.machine()
    assert after.requests == () and after.maps[0].counts[1:3] == (0, 0) and after.maps[0].counts[3] > 0
    assert after.memory == core.ledger.as_object()


def test_of_a_request_without_limit_none_is_told_and_of_one_that_generates_nothing_0(path: Path) -> None:
    core = engine(path, context_limit_policy="shift", storage="paged")
    ask(core, "endless", 20, None)
    core.add(Request("pooled", prompt_of(9), SamplingParams(), seed=0, pooling="mean"))
    assert [each.max_generated for each in core.machine().requests] == [None, 0]


def test_a_long_line_is_cut_and_the_rest_counted(path: Path) -> None:
    core = engine(path)
    for i in range(MAX_REQUESTS + 3):
        ask(core, str(i), 3)
    view = core.machine()
    assert len(view.requests) == MAX_REQUESTS and view.num_left_out == 3
