"""The compiled kernels as a Python object, loaded once per process, or the reason why there are none."""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor

from octavo.errors import InvalidRequest
from octavo.kernels.cpu.build import BuildError, compiled_library

_LOG = logging.getLogger(__name__)


class WeightPart(ctypes.Structure):
    """`octavo_weight`: rows of a matrix that share an encoding."""

    _fields_ = (
        ("data", c_void_p),
        ("rows", c_int64),
        ("bits", c_int32),
        ("group", c_int32),
        ("zero", c_int32),
        ("has_minimum", c_int32),
        ("unit", c_float),
    )


class Rows(ctypes.Structure):
    """`octavo_rows`: stored keys or values."""

    _fields_ = (
        ("data", c_void_p),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
        ("dtype", c_int32),
        ("dim", c_int32),
        ("scales", c_void_p),
        ("scale_row_stride", c_int64),
        ("scale_head_stride", c_int64),
        ("scaled", c_int64),
        ("tables", c_void_p),
    )


class Rotation(ctypes.Structure):
    """`octavo_rotation`: tables of cos and sin, and where in them tokens are; their own rows without positions."""

    _fields_ = (("cos", c_void_p), ("sin", c_void_p), ("positions", c_void_p))


class Heads(ctypes.Structure):
    """`octavo_heads`: what all sequences of a group of layers share."""

    _fields_ = (
        ("num_q_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
    )


_PROTOTYPES: dict[str, tuple[object, tuple[object, ...]]] = {
    "octavo_set_threads": (c_int32, (c_int32,)),
    "octavo_packed_bytes": (c_int64, (c_int64, c_int64, c_int32, c_int32, c_int32)),
    "octavo_has_form": (c_int32, (c_int32, c_int32, c_int32)),
    "octavo_pack": (None, (c_void_p, c_void_p, c_void_p, c_int64, POINTER(WeightPart))),
    "octavo_pack_blocks": (c_int32, (c_void_p, c_int64, c_void_p, c_int64, c_int32, POINTER(WeightPart))),
    "octavo_linear": (c_int32, (c_void_p, c_int32, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64)),
    "octavo_linear_greedy": (c_int32, (c_void_p, c_int32, c_int64, c_void_p, c_int64, c_int64, c_void_p)),
    "octavo_gated_linear": (
        c_int32,
        (c_void_p, c_int32, c_int64, c_void_p, c_int64, c_int64, c_int32, c_void_p),
    ),
    "octavo_lookup": (None, (c_void_p, c_int64, c_void_p, c_int64, c_void_p)),
    "octavo_rms_norm": (None, (c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p)),
    "octavo_add_rms_norm": (
        None,
        (c_void_p, c_void_p, c_void_p, c_float, c_void_p, c_int64, c_int64, c_float, c_void_p),
    ),
    "octavo_rotate": (
        None,
        (c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float),
    ),
    "octavo_gate": (None, (c_void_p, c_int64, c_int64, c_int32, c_void_p)),
    "octavo_best": (c_int32, (c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "octavo_greedy": (c_int32, (c_void_p, c_int64, c_int64, c_void_p)),
    "octavo_store": (None, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64)),
    "octavo_attend": (
        c_int32,
        (c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    ),
    "octavo_attend_qkv": (
        c_int32,
        (
            *(c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float),
            *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
        ),
    ),
    "octavo_gated_mlp": (
        c_int32,
        (c_void_p, c_int64, c_int64, c_void_p, c_int32, c_int64, c_int32, c_void_p, c_int32, c_void_p),
    ),
    "octavo_blocks": (
        c_int32,
        (
            *(c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64),
            *(c_void_p, c_float, c_void_p),
        ),
    ),
    "octavo_instructions": (ctypes.c_char_p, ()),
}


@dataclass(frozen=True, slots=True)
class Library:
    """`functions` has the C functions by name, with their types; None where there are none, for `reason`."""

    functions: ctypes.CDLL | None
    reason: str
    freshly_compiled: bool = False

    @property
    def instructions(self) -> str:
        """The instructions that the kernels were compiled for, e.g. `avx512-vnni + amx-int8`."""
        assert self.functions is not None
        return str(self.functions.octavo_instructions().decode())

    @property
    def description(self) -> str:
        """In a few words: what the kernels were compiled for, or why there are none."""
        return f"none ({self.reason})" if self.functions is None else f"compiled for {self.instructions}"


def pointer(tensor: Tensor | None) -> int | None:
    """What the functions take for a tensor that may be absent."""
    return None if tensor is None else tensor.data_ptr()


@cache
def load() -> Library:
    """The kernels, compiled now if need be (some seconds, once). `OCTAVO_CPU_KERNELS=0` does without."""
    wanted = os.environ.get("OCTAVO_CPU_KERNELS", "")
    if wanted not in ("", "0", "1"):
        raise InvalidRequest(f"OCTAVO_CPU_KERNELS is {wanted!r}; set it to 0 or 1, or unset it")
    if wanted == "0":
        return Library(None, "OCTAVO_CPU_KERNELS=0")
    try:
        functions, fresh = compiled_library(bind)
        return Library(functions, "", fresh)
    except BuildError as error:
        reason = str(error)
    except (OSError, AttributeError) as error:
        reason = f"the compiled kernels cannot be loaded: {error}"
    _LOG.info("no compiled CPU kernels: %s; going on with torch's, which are slower", reason)
    return Library(None, reason)


def bind(path: Path) -> ctypes.CDLL:
    """The functions of the library at `path`, with their types. Raises `OSError` or `AttributeError` for others."""
    functions = ctypes.CDLL(str(path))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions


def set_threads(threads: int) -> None:
    """Threads that kernels share work over from now on, in the whole process."""
    functions = load().functions
    if functions is not None:
        functions.octavo_set_threads(threads)
