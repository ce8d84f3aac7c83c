"""The public API. Importing it loads no torch: `LLM` and `KVSnapshot` are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.environment import have_threads_wait
from octavo.errors import CapacityError, EngineFault, InvalidRequest, LoadError, OctavoError
from octavo.grammar_spec import GrammarSpec
from octavo.outputs import Completion, EmbeddingOutput, RequestOutput
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.llm import LLM
    from octavo.storage.snapshot import KVSnapshot

    __version__: str

__all__ = [
    "LLM",
    "CapacityError",
    "Completion",
    "EmbeddingOutput",
    "EngineFault",
    "GrammarSpec",
    "InvalidRequest",
    "KVSnapshot",
    "LoadError",
    "OctavoError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


have_threads_wait()


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "KVSnapshot":
        from octavo.storage.snapshot import KVSnapshot

        return KVSnapshot
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # a seventh of a second, which few need

    try:
        return version("octavo")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted(__all__)
