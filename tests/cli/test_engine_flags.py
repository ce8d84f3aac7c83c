"""Every flag that shapes an engine reaches its configuration, in whatever command it is given."""

from __future__ import annotations

from dataclasses import fields

import pytest

from octavo.cli.engine_options import EngineFlags
from octavo.config import EngineConfig


def test_flags_left_alone_are_what_the_engine_does_by_itself() -> None:
    assert EngineFlags().config(8) == EngineConfig(max_num_seqs=8)
    assert {each.name for each in fields(EngineFlags)} <= {each.name for each in fields(EngineConfig)}


@pytest.mark.parametrize("name", ["max_batch_tokens", "prefill_chunk", "prefill_grant_interval"])
def test_step_budgets_are_honoured(name: str) -> None:
    assert getattr(EngineFlags(**{name: 7}).config(1), name) == 7


@pytest.mark.parametrize("command", ["generate", "chat", "inspect", "serve"])
@pytest.mark.parametrize("flag", ["--max-batch-tokens", "--prefill-chunk", "--prefill-grant-interval"])
def test_a_step_budget_of_nothing_is_refused_by_every_command(octavo, command: str, flag: str) -> None:
    done = octavo(command, flag, "0", stdin=b"hello")
    assert done.status == 2
    assert f"{flag.removeprefix('--').replace('-', ' ')} is 0; it must be a whole number of at least 1" in done.err
    assert done.err.count("\n") == 1
