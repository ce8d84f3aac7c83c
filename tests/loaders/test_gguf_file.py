"""Broken, truncated and hostile GGUF files are refused at once, with the file, the tensor and the sizes (R042)."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import save_gguf, tiny_model

from octavo.errors import LoadError
from octavo.models.loaders import open_checkpoint
from octavo.models.loaders.gguf_file import GGUFFile


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole valid file of a tiny llama."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return save_gguf(path, tiny_model("llama", num_hidden_layers=1), "llama").read_bytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def container(
    *entries: bytes, pairs: tuple[bytes, ...] = (), num_tensors: int | None = None, num_pairs: int | None = None
) -> bytes:
    """A hand-made file: header, pairs, entries, padding, and 256 bytes of tensor data."""
    counts = (
        len(entries) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + bytes(256)


def refusal(path: Path, content: bytes) -> str:
    """The message with which a file of this content is refused; opening it must allocate next to nothing."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LoadError) as caught:
            open_checkpoint(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_file_cut_in_its_tensors_is_refused_with_tensor_and_both_sizes(
    tmp_path: Path, model_bytes: bytes, share: float
) -> None:
    cut = model_bytes[: int(len(model_bytes) * share)]
    message = refusal(tmp_path / "cut.gguf", cut)
    assert "tensor '" in message
    assert "needs bytes" in message
    assert f"has {len(cut)} bytes" in message


@pytest.mark.parametrize("length", [3, 4, 6, 8, 20, 100, 1000, 5000])
def test_a_file_cut_in_its_header_or_metadata_is_refused(tmp_path: Path, model_bytes: bytes, length: int) -> None:
    message = refusal(tmp_path / "cut.gguf", model_bytes[:length])
    assert "not a GGUF file" in message or f"has {length} bytes" in message


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert "empty" in refusal(tmp_path / "empty.gguf", b"")


@pytest.mark.parametrize("magic", [b"GGML", b"FUGG", b"PK\x03\x04", b"\x80\x02}q"])
def test_another_formats_magic_is_refused_and_shown(tmp_path: Path, model_bytes: bytes, magic: bytes) -> None:
    assert repr(magic) in refusal(tmp_path / "other.gguf", magic + model_bytes[4:])


def test_a_big_endian_file_is_refused_as_such(tmp_path: Path) -> None:
    assert "big-endian" in refusal(tmp_path / "big.gguf", b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(100))


@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_an_unknown_version_is_refused_with_its_number(tmp_path: Path, version: int) -> None:
    content = b"GGUF" + struct.pack("<IQQ", version, 0, 0) + bytes(64)
    assert f"version {version}" in refusal(tmp_path / "version.gguf", content)


HUGE = (2**31, 2**62, 2**64 - 1)


@pytest.mark.parametrize("count", HUGE)
def test_absurd_counts_are_refused_before_anything_is_allocated(tmp_path: Path, count: int) -> None:
    assert "needs" in refusal(tmp_path / "tensors.gguf", container(num_tensors=count))
    assert "needs" in refusal(tmp_path / "pairs.gguf", container(num_pairs=count))


@pytest.mark.parametrize("count", HUGE)
def test_absurd_lengths_of_strings_and_arrays_are_refused_by_key(tmp_path: Path, count: int) -> None:
    string = text("some.key") + struct.pack("<IQ", 8, count)
    strings = text("some.key") + struct.pack("<IIQ", 9, 8, count)
    numbers = text("some.key") + struct.pack("<IIQ", 9, 6, count)
    arrays = text("some.key") + struct.pack("<IIQ", 9, 9, count)
    for pair in (string, strings, numbers, arrays):
        assert "some.key" in refusal(tmp_path / "long.gguf", container(pairs=(pair,)))
    inner = text("some.key") + struct.pack("<IIQ", 9, 8, 4) + struct.pack("<Q", count)
    assert "some.key" in refusal(tmp_path / "inner.gguf", container(pairs=(inner,)))


def test_arrays_nested_without_end_are_refused(tmp_path: Path) -> None:
    pair = text("some.key") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    assert "some.key" in refusal(tmp_path / "nested.gguf", container(pairs=(pair,)))


@pytest.mark.parametrize("num_dims", [0, 5, 2**32 - 1])
def test_an_absurd_number_of_dimensions_is_refused(tmp_path: Path, num_dims: int) -> None:
    broken = text("w") + struct.pack("<I", num_dims) + bytes(64)
    assert f"{num_dims} dimensions" in refusal(tmp_path / "dims.gguf", container(broken))


@pytest.mark.parametrize("dims", [(2**32, 2**32), (2**63, 4), (2**64 - 1, 2**64 - 1, 2**64 - 1), (1 << 40, 1)])
def test_a_shape_whose_size_would_wrap_around_is_refused_with_the_true_size(
    tmp_path: Path, dims: tuple[int, ...]
) -> None:
    message = refusal(tmp_path / "wrap.gguf", container(entry("w", dims, 0, 0)))
    assert "tensor 'w' needs bytes" in message


def test_a_shape_without_values_is_refused(tmp_path: Path) -> None:
    assert "holds no values" in refusal(tmp_path / "zero.gguf", container(entry("w", (8, 0), 0, 0)))


@pytest.mark.parametrize("offset", [224, 256, 2**32, 2**63, 2**64 - 32])
def test_an_offset_past_the_end_or_near_the_wrap_is_refused(tmp_path: Path, offset: int) -> None:
    message = refusal(tmp_path / "offset.gguf", container(entry("w", (16,), 0, offset)))
    assert "tensor 'w' needs bytes" in message
    assert "but the file has" in message


def test_a_misaligned_offset_is_refused(tmp_path: Path) -> None:
    assert "multiple of 32" in refusal(tmp_path / "odd.gguf", container(entry("w", (4,), 0, 33)))


def test_repeated_and_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    repeated = container(entry("w", (8,), 0, 0), entry("w", (8,), 0, 32))
    assert "'w' occurs twice" in refusal(tmp_path / "twice.gguf", repeated)
    overlapping = container(entry("a", (16,), 0, 0), entry("b", (8,), 0, 32))
    assert "inside tensor 'a'" in refusal(tmp_path / "overlap.gguf", overlapping)


def test_a_row_that_is_no_whole_number_of_blocks_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path / "row.gguf", container(entry("w", (48, 2), 2, 0)))
    assert "Q4_0 needs a multiple of 32" in message


def test_an_unknown_tensor_type_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    message = refusal(tmp_path / "type.gguf", container(entry("w", (256,), 34, 0)))
    assert "tensor 'w' has type TQ1_0" in message
    assert "Q4_K" in message


@pytest.mark.parametrize("alignment", [0, 7, 24])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, alignment: int) -> None:
    pair = text("general.alignment") + struct.pack("<II", 4, alignment)
    assert "alignment" in refusal(tmp_path / "align.gguf", container(pairs=(pair,)))


def test_version_two_files_and_every_metadata_type_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "llama")
    values = {
        "a": (200, gguf.GGUFValueType.UINT8),
        "b": (-100, gguf.GGUFValueType.INT8),
        "c": (60_000, gguf.GGUFValueType.UINT16),
        "d": (-30_000, gguf.GGUFValueType.INT16),
        "e": (2**32 - 1, gguf.GGUFValueType.UINT32),
        "f": (-(2**31), gguf.GGUFValueType.INT32),
        "g": (0.25, gguf.GGUFValueType.FLOAT32),
        "h": (True, gguf.GGUFValueType.BOOL),
        "i": ("naïve", gguf.GGUFValueType.STRING),
        "j": (2**64 - 1, gguf.GGUFValueType.UINT64),
        "k": (-(2**63), gguf.GGUFValueType.INT64),
        "l": (0.1, gguf.GGUFValueType.FLOAT64),
    }
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    writer.add_array("numbers", [1.5, -2.5])
    writer.add_array("flags", [True, False])
    writer.add_array("texts", ["", "ü", "abc"])
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    content = (tmp_path / "all.gguf").read_bytes()
    for version in (2, 3):
        (tmp_path / "v.gguf").write_bytes(content[:4] + struct.pack("<I", version) + content[8:])
        file = GGUFFile.open(tmp_path / "v.gguf")
        assert {key: file.metadata[key] for key in values} == {key: value for key, (value, _) in values.items()}
        assert file.metadata["numbers"] == [1.5, -2.5]
        assert file.metadata["flags"] == [True, False]
        assert file.metadata["texts"] == ["", "ü", "abc"]
        tensor = file.tensor(file.entries["w"])
        assert tensor.shape == (2, 3)
        assert tensor.dequantize().tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_text_that_is_not_utf8_is_read_with_replacement_characters_but_refused_in_keys(tmp_path: Path) -> None:
    bad = struct.pack("<Q", 2) + b"a\xff"
    (tmp_path / "value.gguf").write_bytes(container(pairs=(text("k") + struct.pack("<I", 8) + bad,)))
    assert GGUFFile.open(tmp_path / "value.gguf").metadata["k"] == "a�"
    assert "UTF-8" in refusal(tmp_path / "key.gguf", container(pairs=(bad + struct.pack("<IB", 0, 1),)))


@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_corrupted_header_is_opened_or_refused_but_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, model_bytes: bytes, data: st.DataObject
) -> None:
    header = bytearray(model_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, 16_000))
        header[position] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "corrupt.gguf"
    path.write_bytes(header)
    outcome = attempt(lambda: open_checkpoint(path))
    assert outcome in ("opened", "refused")


def attempt(action: Callable[[], object]) -> str:
    try:
        action()
    except LoadError:
        return "refused"
    return "opened"
