"""The checking process: reads one grammar, compiles it and walks it for a while, and says whether it can be used.

A hostile grammar may take all of this process's time, memory or stack, and nothing else. `checker.py` starts it.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import sys
import threading
import time
from typing import NoReturn

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from octavo.errors import InvalidRequest
from octavo.grammar.grammar_text import grammar_text
from octavo.grammar.limits import CHECK_BYTES, CHECK_CPU_S, CHECK_STACK_BYTES, TRIAL_STEP_S, parser_limits
from octavo.grammar_spec import GrammarSpec

_WALKS, _STEPS = 3, 48
_EOS, _CONTROL = 256, 257
_TOKEN_BY_ID = re.compile(r"<\[[0-9]+\]>")
_NICENESS = 5  # the requests that run go first


class _Bytes:
    """A vocabulary of the 256 bytes, an end, and one more control token."""

    eos_token_id = _EOS
    bos_token_id = None
    special_token_ids = (_EOS, _CONTROL)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", b"<control>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def check(spec: GrammarSpec) -> str:
    """The grammar in llguidance's form. Raises `InvalidRequest` if it cannot be used."""
    text = grammar_text(spec)
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=_CONTROL + 1, eos_token=[_EOS], slices=[])
    # Ids are the model's, whose vocabulary is not here: one token stands for all that a grammar names.
    trial = _TOKEN_BY_ID.sub(f"<[{_CONTROL}]>", text) if spec.kind == "grammar" else text
    start = LLMatcher(tokenizer, trial, log_level=0, limits=parser_limits())
    for seed in range(_WALKS):
        _walk(start.deep_copy(), random.Random(seed))
    return text


def _walk(matcher: LLMatcher, choice: random.Random) -> None:
    """Go along one derivation, byte by byte, as sampling will."""
    bits = np.zeros(_CONTROL // 32 + 1, dtype=np.int32)
    for _ in range(_STEPS):
        began = time.process_time()
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if matcher.is_error() or not len(allowed):
            raise InvalidRequest(f"the grammar cannot be followed: {_first_line(matcher.get_error())}; simplify it")
        if time.process_time() - began > TRIAL_STEP_S:
            raise InvalidRequest(f"a step of the grammar takes more than {TRIAL_STEP_S:g} s; simplify it")
        token = int(allowed[choice.randrange(len(allowed))])
        if token == _EOS:
            return
        matcher.consume_token(token)


def _first_line(message: str) -> str:
    unknown = re.search(r'unknown special token: "(.*?)"', message)
    if unknown is not None:  # the model's are not known here
        return f"the token {unknown[1][:100]} is named; write its id, as <[2]>"
    line = message.split("\n", 1)[0].strip()
    return "nothing matches it" if not line or line.startswith("NoExtension") else line


def _bound() -> None:
    """Give this process little to waste. A system without one of the limits keeps to the clock of who started it."""
    for name, most in ((resource.RLIMIT_CPU, CHECK_CPU_S), (resource.RLIMIT_AS, CHECK_BYTES)):
        _, hard = resource.getrlimit(name)
        if hard == resource.RLIM_INFINITY or most <= hard:
            resource.setrlimit(name, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> NoReturn:
    """One JSON object in, one out: `{"grammar": …}` or `{"error": …}`."""
    os.nice(_NICENESS)
    _bound()
    fields = json.load(sys.stdin)
    answer: dict[str, str] = {}

    def run() -> None:
        try:
            answer["grammar"] = check(GrammarSpec(**fields))
        except InvalidRequest as error:
            answer["error"] = str(error)
        except (RecursionError, MemoryError):
            answer["error"] = "the grammar is nested too deeply or too large; simplify it"

    threading.stack_size(CHECK_STACK_BYTES)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    sys.exit(0 if answer else 1)


if __name__ == "__main__":
    main()
