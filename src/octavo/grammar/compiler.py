"""Makes grammars for one vocabulary, off the caller's thread, and keeps those that were used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from octavo.errors import InvalidRequest
from octavo.grammar.checker import checked
from octavo.grammar.limits import parser_limits
from octavo.grammar.matcher import GrammarMatcher
from octavo.grammar.stacks import deep_stacks
from octavo.grammar.vocabulary import grammar_vocabulary
from octavo.grammar_spec import GrammarSpec
from octavo.tokenizer import Tokenizer

MAX_CACHED = 64
MAX_CACHED_CHARS = 4 << 20
_WORKERS = 2  # so that one hostile grammar does not hold up the next


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """`start` is a matcher that has taken nothing; it is copied, never used."""

    start: LLMatcher

    def matcher(self) -> GrammarMatcher:
        """A matcher for one choice."""
        return GrammarMatcher(self.start.deep_copy())


class GrammarCompiler:
    """Used by one thread; the work is done by others. Grammars that were refused are kept, too, as refusals."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, check: Callable[[GrammarSpec], str] = checked) -> None:
        """`vocab_size` is the number of logits. `check` makes llguidance's form of a grammar, or raises."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._check = check
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._cached: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()

    @property
    def is_possible(self) -> bool:
        """Whether this model can be held to a grammar at all: it has a token that ends a text."""
        return bool(self._tokenizer.eos_token_ids)

    def prepare(self) -> None:
        """Do now what else the first grammar waits for. Raises `InvalidRequest` if this model can have none."""
        self._prepared()

    def compile(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The grammar, perhaps in a while. The future raises `InvalidRequest` for one that cannot be used.

        It may be cancelled by whoever knows that nobody waits for it; who asks again gets another.
        """
        found = self._cached.get(spec)
        if found is not None and not found.cancelled() and not (found.done() and _failed_by_itself(found)):
            self._cached.move_to_end(spec)
            return found
        if self._executor is None:
            self._executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="octavo-grammar")
        with deep_stacks():
            future = self._executor.submit(self._compile, spec)
        self._cached[spec] = future
        self._cached.move_to_end(spec)
        self._trim()
        return future

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        text = self._check(spec)
        start = LLMatcher(self._prepared(), text, log_level=0, limits=parser_limits())
        if start.is_error():
            raise InvalidRequest(f"the {spec.kind} cannot be used with this model: {start.get_error()}")
        return CompiledGrammar(start)

    def _prepared(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = grammar_vocabulary(self._tokenizer, self._vocab_size)
            return self._vocabulary

    def _trim(self) -> None:
        chars = sum(len(spec.text) for spec in self._cached)
        while len(self._cached) > 1 and (len(self._cached) > MAX_CACHED or chars > MAX_CACHED_CHARS):
            spec, _ = self._cached.popitem(last=False)
            chars -= len(spec.text)


def _failed_by_itself(future: Future[CompiledGrammar]) -> bool:
    """Whether it was no fault of the grammar's, so that another attempt may do."""
    error = future.exception()
    return error is not None and not isinstance(error, InvalidRequest)
