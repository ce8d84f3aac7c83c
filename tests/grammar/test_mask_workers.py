"""The threads that fill masks: rows of a batch, one that raises, one that is stuck."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.grammar.check_process import check
from octavo.grammar.compiler import CompiledGrammar, GrammarCompiler
from octavo.grammar.mask_workers import MaskWorkers
from octavo.grammar.matcher import GrammarMatcher, MaskRow
from octavo.grammar_spec import GrammarSpec

TOKENIZER = mock_tokenizer()
VOCAB = TOKENIZER.vocab_size + 40  # a model may have more logits than its tokenizer has tokens


@pytest.fixture(scope="module")
def compiled() -> CompiledGrammar:
    compiler = GrammarCompiler(TOKENIZER, VOCAB, check)
    return compiler.compile(GrammarSpec.regex("[ab]c")).result()


def texts(row: MaskRow) -> set[bytes]:
    """The bytes of the tokens that a mask allows; those of an end of text are its name."""
    ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return {TOKENIZER.token_bytes(token_id) for token_id in ids}


def token(text: str) -> int:
    [token_id] = TOKENIZER.encode(text, add_special_tokens=False)
    return token_id


class Odd(GrammarMatcher):
    """A matcher whose filling is `act`."""

    def __init__(self, act) -> None:
        self.act = act
        self.error = self.failure = None

    def fill(self, row: MaskRow) -> None:
        self.act()


def test_rows_are_filled_and_those_without_a_grammar_left_out(compiled):
    workers = MaskWorkers(VOCAB, num_threads=2)
    first, second = compiled.matcher(), compiled.matcher()
    second.note(token("a"))
    pending = workers.begin([None, first, None, second])
    assert pending is not None and pending.rows == [1, 3]
    bits = workers.finish(pending)
    assert texts(bits[0]) == {b"a", b"b"} and texts(bits[1]) == {b"c"}
    assert workers.begin([None, None]) is None


def test_filling_again_gives_the_same_mask_and_at_the_end_only_an_end_may_come(compiled):
    workers, matcher = MaskWorkers(VOCAB, num_threads=1), compiled.matcher()
    for noted, allowed in (("", {b"a", b"b"}), ("b", {b"c"}), ("c", None)):
        if noted:
            matcher.note(token(noted))
        ends = {TOKENIZER.token_bytes(each) for each in TOKENIZER.eos_token_ids}
        for _ in range(2):
            pending = workers.begin([matcher])
            assert pending is not None
            assert texts(workers.finish(pending)[0]) == (ends if allowed is None else allowed)
    assert matcher.error is None


def test_a_token_that_the_grammar_forbids_fails_the_matcher(compiled):
    workers, matcher = MaskWorkers(VOCAB, num_threads=1), compiled.matcher()
    matcher.note(token("z"))
    pending = workers.begin([matcher])
    assert pending is not None
    assert (workers.finish(pending)[0] == -1).all()
    assert matcher.failure == "fault" and matcher.error is not None


def test_a_row_that_raises_fails_alone(compiled):
    def act() -> None:
        raise ZeroDivisionError("nobody foresaw this")

    workers, odd, sound = MaskWorkers(VOCAB, num_threads=1), Odd(act), compiled.matcher()
    pending = workers.begin([odd, sound])
    assert pending is not None
    bits = workers.finish(pending)
    assert odd.failure == "fault" and "nobody foresaw this" in (odd.error or "")
    assert (bits[0] == -1).all() and texts(bits[1]) == {b"a", b"b"}


def test_a_row_that_is_stuck_is_given_up_and_holds_up_nobody(compiled):
    release = threading.Event()
    workers = MaskWorkers(VOCAB, num_threads=1, step_s=0.1)
    stuck, sound = Odd(lambda: release.wait(30)), compiled.matcher()
    pending = workers.begin([stuck, sound])
    assert pending is not None
    began = time.monotonic()
    bits = workers.finish(pending)
    assert time.monotonic() - began < 10
    assert stuck.failure == "too complex" and "more than 0.1 s" in (stuck.error or "")
    assert (bits[0] == -1).all() and texts(bits[1]) == {b"a", b"b"} and sound.error is None
    release.set()
    pending = workers.begin([sound])
    assert pending is not None and texts(workers.finish(pending)[0]) == {b"a", b"b"}


def test_the_threads_end_with_their_owner(compiled):
    def masks() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "octavo-masks"}

    before = masks()
    workers = MaskWorkers(VOCAB, num_threads=2)
    pending = workers.begin([compiled.matcher()])
    assert pending is not None
    workers.finish(pending)
    started = masks() - before
    assert len(started) == 2
    del workers, pending
    gc.collect()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()
