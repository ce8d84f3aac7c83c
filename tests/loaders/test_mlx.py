"""MLX directories, quantised and judged by the `mlx` package itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_hf

from octavo.errors import LoadError
from octavo.layers.quant_tensor import AffineShape
from octavo.models.loaders import open_checkpoint
from tests.loaders.affine import affine_values

mx = pytest.importorskip("mlx.core", reason="the mlx package is not installed")

UP = "model.layers.1.mlp.up_proj"


def quantised(
    directory: Path,
    bits: int,
    group: int,
    *,
    dtype: torch.dtype = torch.float32,
    override: dict[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Quantises the matrices of a Hugging Face directory in place; returns what mlx dequantises them to."""
    tensors, values = {}, {}
    settings: dict[str, Any] = {"group_size": group, "bits": bits} | (override or {})
    for name, weight in load_file(directory / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if weight.ndim != 2 or settings.get(module) is False:
            tensors[name] = weight
            values[name] = weight.float()
            continue
        scheme = settings | settings.get(module, {})
        matrix = mx.array(weight.float().numpy()).astype({torch.float32: mx.float32, torch.float16: mx.float16}[dtype])
        packed, scales, biases = mx.quantize(matrix, group_size=scheme["group_size"], bits=scheme["bits"])
        back = mx.dequantize(packed, scales, biases, group_size=scheme["group_size"], bits=scheme["bits"])
        values[name] = torch.from_numpy(np.array(back.astype(mx.float32)))
        tensors[name] = torch.from_numpy(np.array(packed))
        tensors[f"{module}.scales"] = torch.from_numpy(np.array(scales))
        tensors[f"{module}.biases"] = torch.from_numpy(np.array(biases))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((directory / "config.json").read_text())
    config |= {"quantization": settings, "quantization_config": settings}
    (directory / "config.json").write_text(json.dumps(config))
    return values


def edit_settings(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["quantization"] |= changes
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_and_values_are_those_of_mlx(tmp_path: Path, bits: int, group: int) -> None:
    save_hf(tmp_path, "llama", hidden_size=128, intermediate_size=256)
    values = quantised(tmp_path, bits, group)
    stored = load_file(tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint.names()) == set(values)
    for name, expected in values.items():
        tensor = checkpoint.tensor(name)
        assert tensor.shape == tuple(expected.shape)
        # mlx may fuse the multiplication and the addition: at most the last bit of the larger term differs.
        torch.testing.assert_close(tensor.dequantize(), expected, rtol=0, atol=2e-7 * float(expected.abs().max()))
        if not name.endswith("norm.weight"):
            assert tensor.format == f"mlx-{bits}bit-g{group}"
            groups = tensor.affine_groups()
            assert groups is not None
            assert tensor.affine_shape() == AffineShape(bits, group, has_minimum=True)
            assert (groups.bits, groups.group, groups.zero) == (bits, group, 0)
            words = stored[name].numpy().view(np.uint32).astype(np.int64)
            codes = (words[:, :, None] >> np.arange(0, 32, bits)) & (2**bits - 1)
            assert np.array_equal(groups.codes.numpy(), codes.reshape(expected.shape))
            assert torch.equal(groups.scale, stored[name.replace(".weight", ".scales")])
            assert torch.equal(groups.minimum, stored[name.replace(".weight", ".biases")])
    assert checkpoint.num_bytes == sum(value.numel() * value.element_size() for value in stored.values())


def test_half_precision_scales_are_applied_in_float32(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama")
    values = quantised(tmp_path, 4, 32, dtype=torch.float16)
    tensor = open_checkpoint(tmp_path).tensor(f"{UP}.weight")
    expected = values[f"{UP}.weight"]
    torch.testing.assert_close(tensor.dequantize(), expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
    groups = tensor.affine_groups()
    assert groups is not None
    assert torch.equal(affine_values(groups), tensor.dequantize())


@pytest.mark.parametrize("bits", [4, 8])
def test_slices_hold_the_same_values_as_the_whole_and_never_cut_a_group(tmp_path: Path, bits: int) -> None:
    save_hf(tmp_path, "llama", hidden_size=128)
    quantised(tmp_path, bits, 32)
    tensor = open_checkpoint(tmp_path).tensor(f"{UP}.weight")
    whole = tensor.dequantize()
    part = tensor.rows(10, 20).columns(32, 96).rows(1, 5)
    assert part.shape == (4, 64)
    assert torch.equal(part.dequantize(), whole[11:15, 32:96])
    assert torch.equal(part.dequantize(torch.bfloat16), whole[11:15, 32:96].bfloat16())
    with pytest.raises(LoadError, match="cut a group of 32"):
        tensor.columns(0, 16)


def test_overrides_by_layer_are_obeyed(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", intermediate_size=128)
    override = {UP: {"group_size": 32, "bits": 8}, "lm_head": False}
    values = quantised(tmp_path, 4, 64, override=override)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor(f"{UP}.weight").format == "mlx-8bit-g32"
    assert checkpoint.tensor("model.layers.0.mlp.up_proj.weight").format == "mlx-4bit-g64"
    assert checkpoint.tensor("lm_head.weight").format == "F32"
    for name, expected in values.items():
        torch.testing.assert_close(checkpoint.tensor(name).dequantize(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "'bits' is 3"),
        ({"group_size": 48}, "'group_size' is 48"),
        ({"mode": "mxfp4"}, "'mxfp4' is not supported"),
        ({UP: {"bits": 2}}, "'bits' is 2"),
        ({"bits": 8}, "needs scales and biases"),
        ({"group_size": 64}, "needs scales and biases"),
    ],
)
def test_other_schemes_and_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_hf(tmp_path, "llama")
    quantised(tmp_path, 4, 32)
    edit_settings(tmp_path, **changes)
    with pytest.raises(LoadError, match=message):
        open_checkpoint(tmp_path)


def test_scales_without_biases_are_refused(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama")
    quantised(tmp_path, 4, 32)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"{UP}.biases"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match="scales but no biases"):
        open_checkpoint(tmp_path)
