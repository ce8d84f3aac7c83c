"""Tiny checkpoints that the engine's tests share: written once per session, loaded once per dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.engine.loaded_model import LoadedModel
from tests.engine.tiny_engines import CASES, open_model
from tests.tiny_models import save_gguf, save_hf

Load = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory or file of a case of `CASES`."""
    written: dict[str, Path] = {}

    def of(case: str) -> Path:
        if case not in written:
            family, overrides, quant = CASES[case]
            written[case] = tmp_path_factory.mktemp(case.replace("-", "_"))
            model = save_hf(written[case], family, **overrides)
            if quant is not None:
                written[case] = save_gguf(written[case] / "model.gguf", model, family, quant)
        return written[case]

    return of


@pytest.fixture(scope="session")
def load(directory: Callable[[str], Path]) -> Load:
    """`load(case, dtype)`: the case's weights."""
    loaded: dict[tuple[str, str], LoadedModel] = {}

    def of(case: str = "llama", dtype: str = "bfloat16") -> LoadedModel:
        if (case, dtype) not in loaded:
            loaded[case, dtype] = open_model(directory(case), dtype)
        return loaded[case, dtype]

    return of
