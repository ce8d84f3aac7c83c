"""Context shift in storage: what is attended to afterwards, what is touched, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo.cache.refusals import InvalidArgument
from octavo.cache.spec import LayerSpec
from octavo.errors import EngineFault, InvalidRequest
from octavo.step_batch import BlockCopy, FreshBlocks, StepBatch, StepRow, StorageKind
from octavo.storage.compiled_attention import CompiledAttention
from octavo.storage.snapshot import ModelIdentity
from tests.storage.shifted_sequence import Bookkeeping, Decoder

DIM, CONTEXT = 32, 100
LAYOUT = [
    LayerSpec("full", 4, 2, DIM, DIM, 0.2),
    LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, 20),
    LayerSpec("full", 4, 2, DIM, DIM, 0.2),
    LayerSpec("sliding", 4, 2, DIM, DIM, 0.2, 20),
]
WHOLE_HEAD = 1.0 / 100.0 ** (torch.arange(0, DIM, 2) / DIM)
# Another base, a long-context scaling, and a head of which only the first 12 dimensions are rotated.
INV_FREQ = [WHOLE_HEAD, WHOLE_HEAD / 3, WHOLE_HEAD * torch.linspace(0.1, 1, DIM // 2), WHOLE_HEAD[:6]]
ROUTES = ["fused", "gather", "eager"]


@pytest.fixture
def take(monkeypatch):
    """take(route) decides how the next caches attend; without compiled kernels all are eager."""

    def decide(route):
        monkeypatch.setenv("OCTAVO_PAGED_ATTENTION_NATIVE", "0" if route == "gather" else "")
        if route == "eager":
            monkeypatch.setattr(CompiledAttention, "refusal", staticmethod(lambda *_: "asked for by a test"))

    return decide


def decoder_of(keep=4, *, block_size=16, codecs=("f32", "f32"), length=700, context=CONTEXT):
    book = Bookkeeping(LAYOUT, keep, max_context=context, block_size=block_size, codecs=codecs)
    return Decoder(book, LAYOUT, INV_FREQ, length)


def run(decoder, drops, chunk=1):
    """A prompt, then tokens in chunks, with a shift wherever the context is full. Outputs of all steps, per layer."""
    outputs = [decoder.step(40)]
    for num_tokens in drops:
        while len(decoder.book.visible()) + chunk <= CONTEXT:
            outputs.append(decoder.step(chunk))
        decoder.book.drop(num_tokens)
        outputs.append(decoder.step(chunk))
    stop = decoder.book.state.written - chunk + 1  # the last step is longer in larger chunks
    return [torch.cat(pieces)[:stop] for pieces in zip(*outputs, strict=True)]


def planes(cache, sides="kv"):
    return [
        plane.clone().view(torch.uint8)
        for layer in cache._layers.values()
        for side in sides
        for plane in getattr(layer.blocks, side).planes().values()
    ]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("keep", "block_size", "drops"),
    [
        (4, 16, (32, 48, 16)),
        (0, 16, (32, 64, 16)),
        (16, 16, (32, 32, 32)),
        (20, 16, (48, 16, 64)),
        (4, 16, (7, 5, 33, 2, 90)),  # no whole blocks, none at all, and all but a few tokens
        (4, 32, (32, 32, 64)),
        (37, 64, (3, 40, 20)),
    ],
    ids=str,
)
def test_decoding_past_the_context_equals_attention_over_what_is_shown(route, keep, block_size, drops, take):
    take(route)
    decoder = decoder_of(keep, block_size=block_size)
    decoder.step(CONTEXT - 8)
    for _ in range(4):
        decoder.step(1)
    for num_tokens in drops:
        if (room := CONTEXT - len(decoder.book.visible())) > 0:
            decoder.step(room)
        decoder.book.drop(num_tokens)
        for _ in range(2):
            for got, expected in zip(decoder.step(1), decoder.define(), strict=True):
                bound = 2e-5 * expected.abs().max()
                assert (got[0] - expected).abs().max() < bound
                assert (got[0] * 1.01 - expected).abs().max() > bound


@pytest.mark.parametrize(
    ("codecs", "error"), [(("f16", "f16"), 2e-3), (("bf16", "f32"), 3e-2), (("f16", "q8_0"), 1e-2)]
)
def test_codecs_that_can_be_rotated_stay_close(codecs, error):
    decoder = decoder_of(codecs=codecs)
    decoder.step(CONTEXT)
    for _ in range(4):
        decoder.book.drop(16)
        for _ in range(16):
            got = decoder.step(1)
    for output, expected in zip(got, decoder.define(), strict=True):
        assert (output[0] - expected).abs().max() < error * expected.abs().max()


@pytest.mark.parametrize("keep", [4, 16])
def test_every_route_and_chunking_gives_the_same_bits(keep, take):
    results = {}
    for route in ROUTES:
        take(route)
        for chunk in (1, 4):
            results[route, chunk] = run(decoder_of(keep), (32, 48, 16), chunk)
    for route in ROUTES:
        assert equal(results[route, 1], results[route, 4]), route
    assert equal(results["fused", 1], results["gather", 1])


def test_shifts_go_on_long_past_the_length_of_a_table():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    while decoder.book.state.written < 6 * CONTEXT:
        decoder.book.drop(16)
        for _ in range(16):
            got = decoder.step(1)
    for output, expected in zip(got, decoder.define(), strict=True):
        assert (output[0] - expected).abs().max() < 5e-5 * expected.abs().max()


def test_a_shift_changes_the_keys_of_the_tokens_that_go_on_and_nothing_else():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    # Another sequence, in a block of its own.
    other = max(set(range(10)) - {b for table in decoder.book.state.tables for b in table.block_ids})
    fresh = tuple(FreshBlocks(g, 0, (other,)) for g in range(len(decoder.book.groups)))
    decoder.cache.plan(StepBatch((StepRow(0, 1, StorageKind.PAGED, (0,) * 9, 0, fresh, (0, 0), True),)))
    for layer in range(len(LAYOUT)):
        decoder.cache.attend(layer, torch.ones(9, 4, DIM), torch.ones(9, 2, DIM), torch.ones(9, 2, DIM))
    decoder.book.drop(32)
    keys, values = planes(decoder.cache, "k"), planes(decoder.cache, "v")
    decoder.cache.plan(decoder.book.batch([0]))
    assert equal(planes(decoder.cache, "v"), values)
    for layer, before, after in zip(decoder.cache._layers, keys, planes(decoder.cache, "k"), strict=True):
        table = decoder.book.state.tables[decoder.cache._group_of[layer]]
        changed = {row for row in range(len(before)) if not torch.equal(before[row], after[row])}
        live = range(table.live_start, CONTEXT)
        assert changed == {table.block_ids[p // 16] * 16 + p % 16 for p in live}


def test_blocks_that_were_shared_are_replaced_in_the_same_step_and_stay_as_they_were():
    expected, decoder = decoder_of(), decoder_of()
    for each in (expected, decoder):
        each.step(CONTEXT)
        each.book.drop(32)
    book, shared = decoder.book, {}
    row = book.row([0])
    replaced = []
    for g, group in enumerate(book.groups):
        source, target = book.state.tables[g].block_ids[5], book._free[g].pop()
        for layer in group.layers:
            blocks = decoder.cache._layers[layer].blocks
            for plane in (*blocks.k.planes().values(), *blocks.v.planes().values()):
                plane[target * 16 : target * 16 + 16] = plane[source * 16 : source * 16 + 16]
                shared[layer, id(plane)] = plane, source, plane[source * 16 : source * 16 + 16].clone()
        book.state.tables[g].block_ids[5] = target
        replaced.append(FreshBlocks(g, 5, (target,)))
    decoder.book.state.written -= 1
    row = row._replace(fresh=(*replaced, *row.fresh))
    decoder.cache.plan(StepBatch((row,)))  # a first try that fails, so that all is announced by now
    assert equal(decoder.step(1), expected.step(1))
    for plane, source, before in shared.values():
        assert torch.equal(plane[source * 16 : source * 16 + 16], before)


def test_a_step_that_failed_and_is_planned_again_rotates_nothing_again():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    batch = decoder.book.batch([0])
    decoder.cache.plan(batch)
    before = planes(decoder.cache)
    decoder.cache.plan(batch)
    assert equal(planes(decoder.cache), before)


def test_a_step_that_failed_and_is_planned_again_copies_nothing_again_over_keys_that_it_rotated():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    row, copies, fresh = decoder.book.row([0]), [], []
    for g, table in enumerate(decoder.book.state.tables):
        target = decoder.book._free[g].pop()
        copies.append(BlockCopy(g, table.block_ids[5], target, serial=g))
        fresh.append(FreshBlocks(g, 5, (target,)))
    batch = StepBatch((row._replace(fresh=(*fresh, *row.fresh)),), tuple(copies))
    decoder.cache.plan(batch)
    before = planes(decoder.cache)
    decoder.cache.plan(batch)
    assert equal(planes(decoder.cache), before)


def test_a_later_copy_between_the_same_blocks_is_made():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    row = decoder.book.row([0])
    target = decoder.book._free[0].pop()
    fresh = (FreshBlocks(0, 5, (target,)), *row.fresh)
    copy = BlockCopy(0, decoder.book.state.tables[0].block_ids[5], target, serial=1)
    decoder.cache.plan(StepBatch((row._replace(fresh=fresh),), (copy,)))
    before = planes(decoder.cache)
    for layer in decoder.cache._groups[0].layers:
        for side in (decoder.cache._layers[layer].blocks.k, decoder.cache._layers[layer].blocks.v):
            for plane in side.planes().values():
                plane[target * 16 : target * 16 + 16] = 0
    decoder.cache.plan(StepBatch((row._replace(fresh=fresh),), (replace(copy, serial=2),)))
    assert equal(planes(decoder.cache), before)


def test_a_shift_ends_what_can_be_taken_back_of_the_steps_before():
    decoder = decoder_of()
    with decoder.cache.decode_lookahead():
        decoder.step(CONTEXT - 1)
        decoder.step(1)
        decoder.book.drop(32)
        decoder.step(1)
        with pytest.raises(InvalidArgument, match="1 can be taken back"):
            decoder.cache.rewind([1], 2)
        decoder.cache.rewind([1], 1)


def assert_refused(decoder, batch, error, match):
    """Before anything is touched: neither a row nor a table."""
    before = planes(decoder.cache)
    with pytest.raises(error, match=match):
        decoder.cache.plan(batch)
    assert equal(planes(decoder.cache), before)
    assert decoder.cache._tables[1].rope_offset == 0


@pytest.mark.parametrize("codec", ["q8_0", "q4_0", "turbo4"])
def test_keys_in_a_codec_that_cannot_be_rotated_are_refused(codec):
    decoder = decoder_of(codecs=(codec, "f16"))
    with pytest.raises(InvalidRequest, match=f"{codec} for k cannot be shifted"):
        decoder.cache.check_shift()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    assert_refused(decoder, decoder.book.batch([0]), InvalidRequest, "choose one of bf16, f16, f32 for k")


def test_codecs_of_values_and_keys_that_can_be_rotated_pass_the_check():
    for codecs in (("f32", "f32"), ("f16", "q8_0"), ("bf16", "q4_0")):
        decoder_of(codecs=codecs).cache.check_shift()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"storage": StorageKind.DENSE}, "only paged"),
        ({"live_start": (37, 81)}, "position 37 in group 0 .* must be 36"),
        ({"live_start": (35, 81)}, "position 35 in group 0"),
        ({"live_start": (36, 82)}, "position 82 in group 1 .* must be 81"),
        ({"rope_offset": 97}, "it must be from 0 to 96"),
        ({"rope_offset": -1}, "it must be from 0"),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_shifted_so_is_refused(changes, match):
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    row = decoder.book.row([0])
    assert_refused(decoder, StepBatch((row._replace(**changes),)), InvalidArgument, match)
    decoder.cache.plan(StepBatch((row,)))


def test_a_sequence_shifted_at_once_goes_on_as_one_shifted_by_its_next_step():
    expected, decoder = decoder_of(), decoder_of()
    for each in (expected, decoder):
        each.step(CONTEXT)
        each.book.drop(32)
    decoder.cache.shift(decoder.book.state)
    before = planes(decoder.cache)
    decoder.cache.shift(decoder.book.state)
    assert equal(planes(decoder.cache), before)
    assert equal(decoder.step(1), expected.step(1))


def test_a_sequence_that_cannot_be_shifted_at_once_is_refused():
    decoder = decoder_of()
    with pytest.raises(InvalidArgument, match="holds nothing"):
        decoder.cache.shift(decoder.book.state)
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    decoder.book.state.tables[0].live_start += 1
    before = planes(decoder.cache)
    with pytest.raises(InvalidArgument, match="position 37 in group 0"):
        decoder.cache.shift(decoder.book.state)
    assert equal(planes(decoder.cache), before)


def test_what_was_shifted_and_not_rotated_yet_cannot_be_exported():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    with pytest.raises(AssertionError, match="shift it first"):
        decoder.cache.export(decoder.book.state, range(CONTEXT), ModelIdentity("a test", "0" * 64, ""))


def test_a_shift_without_a_rotation_is_an_error():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.cache._frequencies = {}
    decoder.book.drop(32)
    assert_refused(decoder, decoder.book.batch([0]), EngineFault, "set_rotation")


def test_frequencies_for_more_than_a_head_has_are_refused():
    cache = decoder_of().cache
    for wrong in (torch.ones(DIM // 2 + 1), torch.ones(1, 2)):
        with pytest.raises(InvalidArgument, match="layer 3"):
            cache.set_rotation(lambda layer, wrong=wrong: wrong if layer == 3 else WHOLE_HEAD)


def test_another_keep_or_a_lower_offset_than_at_the_last_shift_is_refused():
    decoder = decoder_of()
    decoder.step(CONTEXT)
    decoder.book.drop(32)
    decoder.step(1)
    decoder.book.drop(16)
    row = decoder.book.row([0])
    for changes, match in (({"keep": 5}, "keeps 5 tokens and kept 4"), ({"rope_offset": 16}, "from 32 to")):
        with pytest.raises(InvalidArgument, match=match):
            decoder.cache.plan(StepBatch((row._replace(**changes),)))
