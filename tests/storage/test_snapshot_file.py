"""The bytes of a snapshot: every damage and every lie is refused in one line, and a file is whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from octavo.errors import InvalidRequest, LoadError
from octavo.step_batch import StorageKind
from octavo.storage.snapshot import KVSnapshot
from octavo.storage.snapshot_file import MAX_HEADER_BYTES
from tests.storage.stored_sequence import StoredSequence, draw, layer

LAYOUT = [layer(dim=16, heads=1), layer(window=4, dim=16, heads=1)]


def made(codecs=("q8_0", "f16")) -> KVSnapshot:
    sequence = StoredSequence(LAYOUT, StorageKind.PAGED, codecs)
    sequence.write(draw(LAYOUT), 9)
    return sequence.export()


DATA = made().to_bytes()
HEADER_BYTES = int.from_bytes(DATA[:8], "little")
HEADER = json.loads(DATA[8 : 8 + HEADER_BYTES])


def refused(data: bytes) -> str:
    with pytest.raises(LoadError) as refusal:
        KVSnapshot.from_bytes(data)
    message = str(refusal.value)
    assert message.startswith("K/V snapshot: ") and "\n" not in message and len(message) < 400
    return message


def forged(header=None, payload: bytes | None = None) -> bytes:
    """A container with an intact checksum, whatever else is wrong with it."""
    text = json.dumps(HEADER if header is None else header).encode()
    body = DATA[8 + HEADER_BYTES : -32] if payload is None else payload
    data = len(text).to_bytes(8, "little") + text + body
    return data + hashlib.blake2b(data, digest_size=32).digest()


def described(**changes) -> dict:
    """The header with other words in the description."""
    about = HEADER["__metadata__"]
    snapshot = {**json.loads(about["snapshot"]), **changes}
    return {**HEADER, "__metadata__": {**about, "snapshot": json.dumps(snapshot)}}


def test_what_is_forged_honestly_is_read():
    assert KVSnapshot.from_bytes(forged()).to_bytes() == DATA


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_anywhere_is_refused(position, change):
    data = bytearray(DATA)
    data[position] ^= change
    refused(bytes(data))


@given(st.integers(0, len(DATA) - 1))
def test_a_truncated_snapshot_is_refused(length):
    refused(DATA[:length])


@given(st.binary(min_size=1, max_size=80))
def test_bytes_after_the_end_are_refused(more):
    refused(DATA + more)


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data):
    refused(data)


@pytest.mark.parametrize("num_bytes", [MAX_HEADER_BYTES + 1, 2**40, 2**64 - 1, len(DATA)])
def test_a_huge_declared_header_is_refused_before_it_is_read(num_bytes):
    message = refused(num_bytes.to_bytes(8, "little") + DATA[8:])
    assert f"declares a header of {num_bytes} bytes, but has {len(DATA)} bytes" in message


@pytest.mark.parametrize("version", ["2", "0", 1, None])
def test_another_version_is_named(version):
    header = {**HEADER, "__metadata__": {**HEADER["__metadata__"], "version": version}}
    assert f"is a K/V snapshot of version {version!r}; this Octavo reads version 1" in refused(forged(header))


@pytest.mark.parametrize("header", [[], 3, {}, {"__metadata__": 3}, {"__metadata__": {"format": "pt"}}])
def test_a_safetensors_file_of_something_else_is_no_snapshot(header):
    refused(forged(header))


def test_a_header_nested_to_death_is_refused():
    text = b"[" * 100_000
    refused(len(text).to_bytes(8, "little") + text + DATA)


LIES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)


@given(st.sampled_from(["model", "codecs", "written", "rope_offset", "groups"]), LIES)
def test_a_description_that_lies_is_refused_though_its_checksum_holds(key, value):
    if described(**{key: value}) != HEADER and not (key == "rope_offset" and value in range(10)):
        refused(forged(described(**{key: value})))


GROUP_KEYS = ["kind", "num_kv_heads", "window", "layers", "keep", "live_start"]


@given(st.integers(0, 1), st.sampled_from(GROUP_KEYS), LIES)
def test_a_group_that_lies_is_refused_or_stays_what_it_says(g, key, value):
    groups = json.loads(HEADER["__metadata__"]["snapshot"])["groups"]
    was, groups[g][key] = groups[g][key], value
    data = forged(described(groups=groups))
    if key in ("num_kv_heads", "keep", "live_start", "layers") and value != was:  # the arrays tell
        refused(data)
    elif key == "window" and (value is None or (type(value) is int and 0 <= value < 2**31)):
        assert KVSnapshot.from_bytes(data).groups[g].geometry.window == value
    elif value != was:
        refused(data)


@given(st.sampled_from([name for name in HEADER if name != "__metadata__"]), st.data())
def test_an_array_that_lies_about_itself_is_refused(name, data):
    entry = dict(HEADER[name])
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    entry[key] = data.draw(st.one_of(LIES, st.just([2**31 - 1] * 3), st.just("I64"), st.just([0, 10**400])))
    if entry != HEADER[name]:
        refused(forged({**HEADER, name: entry}))


def test_a_missing_or_foreign_array_is_refused():
    assert "has no token ids" in refused(forged(renamed("token_ids", "other")))
    assert "has no array layers.1.v.*" in refused(forged(renamed("layers.1.v.values", "layers.2.v.values")))
    assert "has no array layers.1.v.*" in refused(forged(renamed("layers.1.v.values", "token_ids.")))


def renamed(old: str, new: str) -> dict:
    return {(new if name == old else name): entry for name, entry in HEADER.items()}


def test_it_is_a_safetensors_file_that_others_can_read(tmp_path):
    snapshot = made()
    snapshot.save(tmp_path / "a.kv")
    with safe_open(tmp_path / "a.kv", "pt") as file:
        assert file.metadata()["format"] == "octavo-kv-snapshot"
        assert torch.equal(file.get_tensor("token_ids"), torch.arange(9))
        for name, plane in snapshot.groups[0].layers[0].k.items():
            assert torch.equal(file.get_tensor(f"layers.0.k.{name}"), plane)


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_is_for_its_owner_alone_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "a.kv"
    path.write_text("older")
    made().save(path)
    assert path.read_bytes() == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a.kv"]
    assert KVSnapshot.load(path).to_bytes() == DATA


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "a.kv").symlink_to(tmp_path / "there" / "b.kv")
    made().save(tmp_path / "a.kv")
    assert (tmp_path / "a.kv").is_symlink() and (tmp_path / "there" / "b.kv").read_bytes() == DATA


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.kv"
    path.write_text("older")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("octavo.storage.snapshot_file.os.fsync", full)
    with pytest.raises(InvalidRequest, match=r"a\.kv: cannot be written \(No space left on device\); give a path"):
        made().save(path)
    assert path.read_text() == "older" and os.listdir(tmp_path) == ["a.kv"]


@pytest.mark.parametrize(
    ("name", "message"), [(".", "is no regular file"), ("absent/a.kv", "is no directory; create it first")]
)
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path, name, message):
    with pytest.raises(InvalidRequest, match=message):
        made().save(tmp_path / name)


@pytest.mark.parametrize("path", ["absent.kv", "", "/dev/null"])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, path):
    with pytest.raises(LoadError, match=f"^{tmp_path / path}: ") as refusal:
        KVSnapshot.load(tmp_path / path)
    assert "\n" not in str(refusal.value)


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "a.kv"
    path.write_bytes(DATA[:-40] + b"x" + DATA[-39:])
    with pytest.raises(LoadError, match=r"a\.kv: its checksum does not match its \d+ bytes, so it is corrupt; make"):
        KVSnapshot.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LoadError, match="no regular file"):
        KVSnapshot.load(tmp_path / "pipe")


def test_a_file_far_longer_than_it_says_is_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "sparse.kv"
    made().save(path)
    os.truncate(path, 1 << 36)
    with pytest.raises(LoadError, match=r"sparse\.kv"):
        KVSnapshot.load(path)


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InvalidRequest, match="leads to itself"):
        made().save(tmp_path / "loop")
