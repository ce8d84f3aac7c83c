"""How one request wants its tokens chosen. Validated once, at construction; never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo.errors import InvalidRequest, shown
from octavo.grammar_spec import GrammarSpec

MAX_LOGPROBS = 100
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request.

    `temperature` 0 is greedy (the default). `max_tokens=None` generates up to the context limit.
    `top_k=0`, `top_p=1`, `min_p=0` and penalties of 1, 0, 0 switch the respective step off.
    `repetition_penalty` looks at prompt and output, presence and frequency at the output only.
    `logprobs=k` returns the chosen token's log-probability and the k best alternatives; `prompt_logprobs=k` the same
    for each prompt token but the first, computed for the first choice alone, and never from a cached prefix.
    `max_tokens=0` generates nothing, which only makes sense with `prompt_logprobs`.
    `grammar` is what the text has to match; once it does, and nothing can follow, only the end can come. Stop strings
    and stop tokens end it before that, if they are asked for.
    With `skip_special_tokens` control tokens are no part of the text, except for `shown_token_ids`.
    Randomness is a function of (seed, choice, position, token id) alone; `seed=None` draws a seed on arrival.

    Raises `InvalidRequest` for any value out of range.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    grammar: GrammarSpec | None = None
    skip_special_tokens: bool = True
    shown_token_ids: Sequence[int] = ()

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        for name in ("stop_token_ids", "shown_token_ids"):
            object.__setattr__(self, name, _items(name, getattr(self, name)))
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequest(f"logit_bias must map token ids to numbers, got {shown(self.logit_bias)}")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1 if self.prompt_logprobs is None else 0, None)
        _real("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, 0, None)
        _real("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _real("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _real("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _integer("n", self.n, 1, MAX_CHOICES)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequest(f"stop must hold non-empty strings, got {shown(text)}")
            if len(text) > MAX_STOP_LENGTH:
                raise InvalidRequest(f"a stop string has {len(text)} characters; at most {MAX_STOP_LENGTH} are allowed")
        for name in ("stop_token_ids", "shown_token_ids"):
            for token_id in getattr(self, name):
                _integer(name, token_id, 0, None)
        for token_id, bias in self.logit_bias.items():
            _integer("logit_bias token id", token_id, 0, None)
            _real(f"logit_bias[{shown(token_id)}]", bias, -1e4, 1e4)
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false, got {shown(getattr(self, name))}")
        self._check_grammar()

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if not isinstance(self.grammar, GrammarSpec):
            raise InvalidRequest(f"grammar must be a GrammarSpec, got {shown(self.grammar)}")
        if self.ignore_eos:
            raise InvalidRequest("ignore_eos is true with a grammar, whose end is an end-of-turn token; leave out one")
        if self.max_tokens == 0:
            raise InvalidRequest("max_tokens is 0 with a grammar, which needs something to hold for; leave out one")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidRequest` if an id named here lies outside `range(vocab_size)`."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidRequest(
                        f"{name} names token id {shown(token_id)}; the vocabulary has ids 0 to {vocab_size - 1}"
                    )


def _items(name: str, values: object) -> tuple[object, ...]:
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} must be a list, got {shown(values)}")
    return tuple(values)


def _integer(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number, got {shown(value)}")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(f"{name} is {shown(value)}; it must be {bounds}")


def _real(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidRequest(f"{name} must be a finite number, got {shown(value)}")
    # Compared before any conversion to float, which a huge integer would overflow.
    if value < low or value > high or (low_open and value == low):
        raise InvalidRequest(
            f"{name} is {shown(value)}; it must be {'above' if low_open else 'at least'} {low:g} and at most {high:g}"
        )
