"""Engine settings are checked when they are given: one line with the value and what may stand there."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig, byte_size
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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("auto", None),
        ("1", 1),
        ("1048576", 1 << 20),
        ("4GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("3 KiB", 3 << 10),
        ("2GB", 2 * 10**9),
        ("7MB", 7 * 10**6),
        ("5KB", 5000),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text, size):
    assert byte_size(text, "--kv-budget") == size


@pytest.mark.parametrize(
    "text",
    ["", "0", "0GiB", "-1", "1.5GiB", "4gib", "4G", "GiB", "4 GiB ", "1e9", "٤GiB", "AUTO", str(2**63), "9" * 5000],
)
def test_sizes_that_cannot_be_are_refused_with_value_limit_and_remedy(text):
    with pytest.raises(InvalidRequest) as refused:
        byte_size(text, "--kv-budget")
    message = str(refused.value)
    assert message.startswith("--kv-budget is '") and "\n" not in message and len(message) < 250
    assert str(2**63 - 1) in message and "4GiB" in message


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "4GiB", 2**63])
def test_a_budget_is_a_positive_number_of_bytes(budget):
    with pytest.raises(InvalidRequest, match="kv budget is"):
        EngineConfig(kv_budget=budget)


def test_a_budget_and_a_number_of_blocks_exclude_each_other():
    assert EngineConfig(kv_budget=1 << 30).kv_budget == 1 << 30
    with pytest.raises(InvalidRequest, match=r"kv budget is 1000 bytes and num kv blocks is 8.*only one"):
        EngineConfig(kv_budget=1000, num_kv_blocks=8)


def test_steps_are_as_large_as_suits_the_device_unless_somebody_says_so():
    cpu, gpu = (EngineConfig().on(device) for device in ("cpu", "cuda"))
    assert (cpu.batch_tokens, cpu.chunk_tokens) == (2048, 512)
    assert (gpu.batch_tokens, gpu.chunk_tokens) == (8192, 2048)
    assert EngineConfig(max_batch_tokens=100).on("cuda").chunk_tokens == 100
    assert EngineConfig(prefill_chunk=7).on("cuda").on("cpu").chunk_tokens == 7
