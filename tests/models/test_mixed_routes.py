"""Files in which some weights take the affine route and others do not: what one hands to the other is right."""

from __future__ import annotations

import gguf
import pytest
import torch

from tests.engine.tiny_engines import alone, open_model, prompt_of
from tests.tiny_models import save_gguf, tiny_model

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.mark.parametrize(
    "narrow", [("ffn_down",), ("attn_output",), ("ffn_gate", "ffn_up"), ("attn_q", "attn_k", "attn_v")]
)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_any_part_alone_may_be_affine(family, narrow, dtype, tmp_path):
    model = tiny_model(family)
    raw = {}
    for name, value in model.state_dict().items():
        for part in narrow:
            if NAMES[part] in name and name.endswith("weight"):
                layer = name.split(".")[2]
                quantised = gguf.quants.quantize(value.float().numpy(), gguf.GGMLQuantizationType.Q8_0)
                raw[f"blk.{layer}.{part}.weight"] = (quantised, gguf.GGMLQuantizationType.Q8_0)
    path = save_gguf(tmp_path / "model.gguf", model, family, raw=raw)
    mixed, exact = open_model(path, dtype), open_model(path, "float32")
    prompt = prompt_of(20)
    got, expected = alone(mixed, prompt), alone(exact, prompt)
    first, reference = got.logits[0], expected.logits[0]
    assert (first - reference).abs().max() < 0.1 * reference.std()
    assert torch.isfinite(torch.stack(got.logits)).all()
