"""The threads that fill masks: rows of a batch, one that raises, one that is stuck."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.grammar.check_process import check
from octavo.grammar.compiler import CompiledGrammar, GrammarCompiler
from octavo.grammar.mask_workers import MaskWorkers
from octavo.grammar.matcher import GrammarMatcher, MaskRow, only_token
from octavo.grammar_spec import GrammarSpec

TOKENIZER = mock_tokenizer()
VOCAB = TOKENIZER.vocab_size + 40  # a model may have more logits than its tokenizer has tokens


@pytest.fixture(scope="module")
def compiled() -> CompiledGrammar:
    compiler = GrammarCompiler(TOKENIZER, VOCAB, check)
    return compiler.compile(GrammarSpec.regex("[ab]c")).result()


@pytest.fixture(scope="module")
def compiled_text() -> Callable[[str], GrammarMatcher]:
    """A matcher of a regular expression."""
    compiler = GrammarCompiler(TOKENIZER, VOCAB, check)
    return lambda regex: compiler.compile(GrammarSpec.regex(regex)).result().matcher()


def texts(row: MaskRow) -> set[bytes]:
    """The bytes of the tokens that a mask allows; those of an end of text are its name."""
    ids = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
    return {TOKENIZER.token_bytes(token_id) for token_id in ids}


def token(text: str) -> int:
    [token_id] = TOKENIZER.encode(text, add_special_tokens=False)
    return token_id


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


class Odd(GrammarMatcher):
    """A matcher whose work is `act`."""

    def __init__(self, act) -> None:
        self.act = act
        self.error = self.failure = None

    def fill(self, row: MaskRow) -> None:
        self.act()

    def forced(self, most: int, row: MaskRow) -> list[int]:
        self.act()
        return [1]


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


def test_tokens_without_an_alternative_are_found_and_noted(compiled_text):
    workers = MaskWorkers(VOCAB, num_threads=2)
    fixed, free, short = compiled_text("a(bcd|bce)"), compiled_text("[ab]c"), compiled_text("a(bcd|bce)")
    assert workers.forced([(fixed, 9), (free, 9), (short, 2)]) == [tokens("abc"), [], tokens("ab")]
    pending = workers.begin([fixed, short])
    assert pending is not None
    bits = workers.finish(pending)
    assert texts(bits[0]) == {b"d", b"e"} and texts(bits[1]) == {b"c"}
    fixed.note(token("e"))
    assert workers.forced([(fixed, 9), (short, 0)]) == [[], []], "there are several ends"
    assert fixed.error is None and workers.forced([]) == []


def test_what_goes_wrong_with_forced_tokens_fails_its_matcher_alone(compiled_text):
    release = threading.Event()
    workers = MaskWorkers(VOCAB, num_threads=1, step_s=0.1)
    stuck, sound = Odd(lambda: release.wait(30)), compiled_text("ab")
    assert workers.forced([(stuck, 9), (sound, 9)]) == [[], tokens("ab")]
    assert stuck.failure == "too complex" and sound.error is None
    release.set()

    def act() -> None:
        raise ZeroDivisionError("nobody foresaw this")

    odd, sound = Odd(act), compiled_text("ab")
    assert workers.forced([(odd, 9), (sound, 9)]) == [[], tokens("ab")]
    assert odd.failure == "fault" and "nobody foresaw this" in (odd.error or "")


def test_a_token_that_the_grammar_forbids_leaves_nothing_forced_and_fails_the_next_mask(compiled_text):
    workers, matcher = MaskWorkers(VOCAB, num_threads=1), compiled_text("abc")
    matcher.note(token("z"))
    assert workers.forced([(matcher, 9)]) == [[]]
    pending = workers.begin([matcher])
    assert pending is not None
    assert (workers.finish(pending)[0] == -1).all() and matcher.failure == "fault"


@pytest.mark.parametrize("token_id", [0, 31, 32, 63, 95])
def test_a_mask_of_one_token_is_told_from_others(token_id):
    row = np.zeros(3, dtype=np.int32)
    assert only_token(row) is None
    bits = row.view(np.uint32)
    bits[token_id // 32] = 1 << token_id % 32
    assert only_token(row) == token_id
    for other in {0, 31, 32, 63, 95} - {token_id}:
        more = row.copy()
        more.view(np.uint32)[other // 32] |= np.uint32(1 << other % 32)
        assert only_token(more) is None
