"""Which codecs a `--kv-dtype` means."""

from __future__ import annotations

import pytest
import torch

from octavo.errors import InvalidRequest
from octavo.storage import resolve_kv_dtype


@pytest.mark.parametrize(
    ("choice", "dtype", "expected"),
    [
        ("auto", torch.float32, ("f32", "f32")),
        ("auto", torch.bfloat16, ("f16", "f16")),
        ("auto", torch.float16, ("f16", "f16")),
        ("bf16", torch.float32, ("bf16", "bf16")),
        ("k=f32,v=bf16", torch.bfloat16, ("f32", "bf16")),
        ("v=bf16", torch.bfloat16, ("f16", "bf16")),
        ("q8_0", torch.bfloat16, ("q8_0", "q8_0")),
        ("k=q8_0,v=q4_0", torch.float32, ("q8_0", "q4_0")),
        ("v=turbo4, k=auto", torch.float32, ("f32", "turbo4")),
    ],
)
def test_a_choice_names_the_codec_of_k_and_of_v(choice, dtype, expected):
    k, v = resolve_kv_dtype(choice, dtype)
    assert (k.name, v.name) == expected


@pytest.mark.parametrize("choice", ["q9", "", "k=q9", "x=f16", "k=f16,w=f16", "f16,f16", "k=f16,k=f32", "k="])
def test_an_unknown_choice_is_refused_with_what_there_is(choice):
    with pytest.raises(InvalidRequest, match=r"f16|k=NAME"):
        resolve_kv_dtype(choice, torch.float32)


@pytest.mark.parametrize("name", ["OCTAVO_PAGED_ATTENTION_NATIVE", "OCTAVO_SDPA_DETERMINISTIC"])
def test_a_switch_that_is_neither_0_nor_1_is_refused(name, monkeypatch):
    from octavo.storage.route import RouteSwitches

    monkeypatch.setenv(name, "yes")
    with pytest.raises(InvalidRequest, match=name):
        RouteSwitches.from_environment()
