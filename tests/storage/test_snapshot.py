"""A sequence's K/V leaves one cache and enters another, whatever storage, block size and codec: bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.errors import InvalidRequest
from octavo.step_batch import StorageKind
from octavo.storage.codecs import CODECS
from octavo.storage.snapshot import KVSnapshot
from tests.storage.stored_sequence import MODEL, StoredSequence, draw, layer

LAYOUT = [layer(), layer(window=40), layer(), layer(window=20)]
DENSE, PAGED = StorageKind.DENSE, StorageKind.PAGED
PAIRS = [(DENSE, DENSE), (DENSE, PAGED), (PAGED, DENSE), (PAGED, PAGED)]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p[0].value}-{p[1].value}")
every_codec = pytest.mark.parametrize("codec", CODECS)


def planes(snapshot):
    return [
        {**{f"k.{n}": t for n, t in rows.k.items()}, **{f"v.{n}": t for n, t in rows.v.items()}}
        for group in snapshot.groups
        for rows in group.layers
    ]


def assert_same(left: KVSnapshot, right: KVSnapshot) -> None:
    assert left.to_bytes() == right.to_bytes()


def filled(storage, data, tokens, **keywords) -> StoredSequence:
    sequence = StoredSequence(LAYOUT, storage, **keywords)
    if tokens > 1:
        sequence.write(data, tokens - 1)
    sequence.write(data, 1)
    return sequence


@every_pair
@every_codec
@pytest.mark.parametrize("tokens", [1, 16, 39, 41, 130])
def test_a_sequence_goes_on_elsewhere_as_if_it_had_never_left(pair, codec, tokens):
    data = draw(LAYOUT)
    home = filled(pair[0], data, tokens, codecs=(codec, codec), block_size=16)
    snapshot = home.export()
    away = StoredSequence(LAYOUT, pair[1], (codec, codec), block_size=32)
    away.count(tokens)
    away.cache.import_(snapshot, away.state)
    assert_same(away.export(), snapshot)
    for count in (1, 37, 1):  # 130 tokens and these wrap both windows again
        for here, there in zip(home.write(data, count), away.write(data, count), strict=True):
            assert torch.isfinite(there).all()
            assert torch.equal(here, there)
    assert_same(away.export(), home.export())


@pytest.mark.parametrize("switch", ["0", "1"])
def test_memory_that_nobody_wrote_reaches_no_attention_by_any_route(switch, monkeypatch):
    monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", switch)
    monkeypatch.setattr("octavo.storage.kv_cache.CompiledAttention.refusal", lambda *_: "the test asks for torch")
    data = draw(LAYOUT)
    home = filled(DENSE, data, 75)
    away = StoredSequence(LAYOUT, PAGED, block_size=64)
    away.count(75)
    away.cache.import_(home.export(), away.state)
    for here, there in zip(home.write(data, 1), away.write(data, 1), strict=True):
        assert torch.equal(here, there)


@every_codec
def test_the_bytes_are_the_same_from_any_storage_and_come_back_as_they_were(codec):
    data = draw(LAYOUT)
    snapshots = [filled(storage, data, 90, codecs=("f16", codec)).export() for storage in (DENSE, PAGED)]
    assert_same(*snapshots)
    back = KVSnapshot.from_bytes(snapshots[0].to_bytes())
    assert_same(back, snapshots[0])
    assert (back.model, back.codecs, back.token_ids) == (MODEL, ("f16", codec), tuple(range(90)))
    for left, right in zip(planes(back), planes(snapshots[0]), strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) and left[name].dtype == right[name].dtype for name in left)


def test_windows_hold_what_the_next_token_sees_and_full_layers_everything():
    snapshot = filled(PAGED, draw(LAYOUT), 130).export()
    held = {group.geometry.window: (group.keep, group.live_start) for group in snapshot.groups}
    assert held == {None: (0, 0), 40: (0, 91), 20: (0, 111)}
    rows = {
        group.geometry.window: {len(t) for layer in group.layers for t in layer.k.values()} for group in snapshot.groups
    }
    assert rows == {None: {130}, 40: {39}, 20: {19}}
    assert snapshot.num_bytes == (2 * 130 + 39 + 19) * 2 * 2 * 32 * 4


@pytest.mark.parametrize("block_size", [16, 64])
def test_kept_tokens_travel_from_blocks_to_blocks(block_size):
    data = draw(LAYOUT)
    home = filled(PAGED, data, 130, keep=5)
    snapshot = KVSnapshot.from_bytes(home.export().to_bytes())
    assert [(group.keep, group.live_start) for group in snapshot.groups] == [(5, 5), (5, 91), (5, 111)]
    away = StoredSequence(LAYOUT, PAGED, block_size=block_size, keep=5)
    away.count(130)
    away.cache.import_(snapshot, away.state)
    assert_same(away.export(), snapshot)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("num_dropped", [32, 96])
def test_a_shifted_context_goes_on_in_a_sequence_that_was_shifted_alike(block_size, num_dropped):
    data = draw(LAYOUT)
    home = filled(PAGED, data, 140, keep=32)
    home.shift(num_dropped)
    snapshot = KVSnapshot.from_bytes(home.export().to_bytes())
    away = StoredSequence(LAYOUT, PAGED, block_size=block_size, keep=32)
    away.count(140)
    away.pool.shift(away.handle, num_dropped)
    away.cache.import_(snapshot, away.state)
    assert_same(away.export(), snapshot)
    for step in range(4):
        for here, there in zip(home.write(data, 1 + 9 * step), away.write(data, 1 + 9 * step), strict=True):
            assert torch.isfinite(there).all()
            assert torch.equal(here, there)
        if step == 1 and num_dropped == 32:
            home.shift(32)
            away.shift(32)
    assert_same(away.export(), home.export())


def test_a_ring_has_no_kept_tokens_for_blocks_that_show_them():
    snapshot = filled(DENSE, draw(LAYOUT), 130, keep=5).export()
    away = StoredSequence(LAYOUT, PAGED, keep=5)
    away.count(130)
    with pytest.raises(InvalidRequest, match=r"group 1 of the K/V snapshot keeps 0 tokens .* shows 5; export it from"):
        away.cache.import_(snapshot, away.state)


def test_a_window_that_goes_back_further_than_the_snapshot_is_refused():
    away = StoredSequence(LAYOUT, PAGED)
    away.pool.append(away.handle, 130)  # and not trimmed, so the windows' next token is not all that it shows
    snapshot = filled(DENSE, draw(LAYOUT), 130).export()
    early = replace(snapshot, groups=tuple(replace(g, live_start=g.live_start + 1) for g in snapshot.groups))
    with pytest.raises(
        InvalidRequest, match=r"group 0 of the K/V snapshot goes on at position 1 and the sequence at 0"
    ):
        away.cache.import_(early, away.state)


def test_a_snapshot_does_not_change_when_its_cache_goes_on():
    data = draw(LAYOUT)
    home = filled(DENSE, data, 60)
    snapshot = home.export()
    before = snapshot.to_bytes()
    home.write(data, 60)
    assert snapshot.to_bytes() == before


# -- refusals, each before anything is written ---------------------------------------------------------------------


def storage_bytes(sequence: StoredSequence) -> list[bytes]:
    return [
        plane.contiguous().view(torch.uint8).numpy().tobytes()
        for store in sequence.cache._layers.values()
        for rows in (store.blocks, store.ring)
        if rows is not None
        for plane in (*rows.k.planes().values(), *rows.v.planes().values())
    ]


@pytest.mark.parametrize("storage", [DENSE, PAGED], ids=lambda s: s.value)
@pytest.mark.parametrize(
    ("layout", "codecs", "message"),
    [
        (LAYOUT, ("f32", "f16"), "is k=f32,v=f32 and this engine stores k=f32,v=f16; choose kv dtype k=f32,v=f32"),
        (LAYOUT[:3], ("f32", "f32"), "has 3 groups of layers and this model 2"),
        ([*LAYOUT[:3], layer(window=24)], ("f32", "f32"), r"group 2 .*sliding of 20 .*is.* sliding of 24"),
        ([layer(heads=1), *LAYOUT[1:]], ("f32", "f32"), "has 3 groups of layers and this model 4"),
        (
            [layer(dim=16) if s.window is None else s for s in LAYOUT],
            ("f32", "f32"),
            r"group 0 .* of 32 and 32 .* of 16",
        ),
        (
            [layer(heads=4) if s.window is None else s for s in LAYOUT],
            ("f32", "f32"),
            r"with 2 K/V heads .* with 4 K/V",
        ),
        ([*LAYOUT, layer()], ("f32", "f32"), r"group 0 .* is 2 full layers from 0 .* is 3 full layers from 0"),
    ],
    ids=["codec", "fewer groups", "window", "more groups", "head size", "heads", "layers"],
)
def test_another_geometry_or_codec_is_refused_with_nothing_written(storage, layout, codecs, message):
    snapshot = filled(DENSE, draw(LAYOUT), 50).export()
    away = StoredSequence(layout, storage, codecs)
    away.count(50)
    before = storage_bytes(away)
    with pytest.raises(InvalidRequest, match=message) as refusal:
        away.cache.import_(snapshot, away.state)
    assert "\n" not in str(refusal.value)
    assert storage_bytes(away) == before
    away.pool.check_integrity()


@pytest.mark.parametrize(("tokens", "offset"), [(49, 0), (50, 16)])
def test_a_sequence_that_counts_otherwise_is_refused_with_nothing_written(tokens, offset):
    snapshot = replace(filled(DENSE, draw(LAYOUT), 50).export(), rope_offset=offset)
    away = StoredSequence(LAYOUT, PAGED)
    away.count(tokens)
    before = storage_bytes(away)
    with pytest.raises(
        InvalidRequest, match=f"covers 50 tokens with rope offset {offset}, and the sequence has {tokens}"
    ):
        away.cache.import_(snapshot, away.state)
    assert storage_bytes(away) == before


def test_planes_of_another_build_of_a_codec_are_refused():
    snapshot = filled(DENSE, draw(LAYOUT), 50).export()
    group = snapshot.groups[0]
    odd = replace(group.layers[0], k={"values": group.layers[0].k["values"].half()})
    snapshot = replace(snapshot, groups=(replace(group, layers=(odd, *group.layers[1:])), *snapshot.groups[1:]))
    away = StoredSequence(LAYOUT, PAGED)
    away.count(50)
    with pytest.raises(
        InvalidRequest, match=r"rows values float16 \[2, 32\]; this engine's are values float32 \[2, 32\]"
    ):
        away.cache.import_(snapshot, away.state)
