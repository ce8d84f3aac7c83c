"""Engine settings are checked when they are given: one line with the value and what may stand there."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig
from octavo.errors import InvalidRequest

HUGE = 10**5000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage", "ring"),
        ("storage", None),
        ("dtype", "float64"),
        ("device", "tpu"),
        ("weights", "float32"),
        ("block_size", 17),
        ("block_size", 16.0),
        ("block_size", HUGE),
        ("max_context", 0),
        ("max_context", HUGE),
        ("max_context", -HUGE),
        ("max_num_seqs", True),
        ("max_num_seqs", None),
        ("max_batch_tokens", 1.5),
        ("prefill_chunk", "7"),
        ("num_kv_blocks", -1),
        ("threads", HUGE),
        ("kv_dtype", None),
        ("kv_dtype", 5),
        ("force", "x"),
    ],
    ids=lambda value: str(value)[:12] if not isinstance(value, int) or abs(value) < 100 else "huge",
)
def test_a_bad_setting_is_refused_by_name_in_one_short_line(name, value):
    with pytest.raises(InvalidRequest) as refused:
        EngineConfig(**{name: value})
    message = str(refused.value)
    assert name.replace("_", " ") in message
    assert "\n" not in message
    assert len(message) < 200


def test_what_may_be_left_open_may_be_none():
    config = EngineConfig(max_context=None, num_kv_blocks=None, threads=None)
    assert (config.max_context, config.num_kv_blocks, config.threads) == (None, None, None)
