"""What routes weights are packed for is known from shapes and encodings: loading takes no other."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.models.route_names import route_names
from tests.conftest import MODEL_FILES, weights_path
from tests.tiny_models import FAMILIES, save_gguf, save_hf

WEIGHTS = ("auto", "full", "int8", "int4")


def check(path, weights="auto", dtype="bfloat16"):
    config = EngineConfig(device="cpu", threads=1, weights=weights, dtype=dtype)
    plan = plan_model(path, config)
    assert route_names(plan.checkpoint, plan.routes) == set(load_model(plan, config).weight_routes)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_takes_the_routes_that_were_told(tmp_path, family, tied, weights):
    save_hf(tmp_path, family, tie_word_embeddings=tied)
    check(tmp_path, weights)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("encoding", ["Q4_0", "Q8_0", "F16"])
def test_a_gguf_file_takes_the_routes_that_were_told(tmp_path, encoding, tied):
    theirs = save_hf(tmp_path / "hf", "llama", tie_word_embeddings=tied)
    path = save_gguf(tmp_path / "llama.gguf", theirs, "llama", encoding)
    for weights in WEIGHTS:
        check(path, weights)
    check(path, "full", "float32")


@pytest.mark.weights
@pytest.mark.parametrize(
    "alias", [pytest.param(alias, marks=pytest.mark.nightly if alias == "qwen05" else ()) for alias in MODEL_FILES]
)
def test_real_models_take_the_routes_that_were_told(alias):
    check(weights_path(alias))
