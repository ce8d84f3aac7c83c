"""A load of requests on the engine over random weights: all at once, of drawn lengths, answered to the last token."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from octavo.bench.percentiles import Spread
from octavo.cache.storage_policy import StorageDecision
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.garbage import keep_what_is_there
from octavo.engine.loaded_model import LoadedModel, share_weights
from octavo.errors import InvalidRequest
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind

_LENGTHS = re.compile(r"(\d{1,9})-(\d{1,9})")
_CHUNK = 4096  # prompt tokens a step


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """`count` requests; each has a prompt and an answer of `least` to `most` tokens, uniform and drawn apart."""

    count: int
    least: int
    most: int

    @classmethod
    def of(cls, count: int, lengths: str) -> RequestLoad:
        """From `256` and `100-1024`. Raises `InvalidRequest`."""
        if count < 1:
            raise InvalidRequest(f"requests is {count}; it must be at least 1")
        found = _LENGTHS.fullmatch(lengths)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise InvalidRequest(f"the lengths are {lengths!r}; give the least and the most tokens, such as 100-1024")
        return cls(count, int(found[1]), int(found[2]))

    @property
    def name(self) -> str:
        return f"{self.count} requests of {self.least}-{self.most}"

    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of each prompt and of its answer: the same in every round."""
        draw = random.Random(1)
        return [(draw.randint(self.least, self.most), draw.randint(self.least, self.most)) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class RequestRound:
    """One time that all were answered. `first_token_s` is the time to a request's first token, of the median one."""

    seconds: float
    output_tokens: int
    first_token_s: float
    steps: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class RequestCell:
    """A load over several rounds. `kinds` are the last round's steps, by how they were run (see `GraphRunner`)."""

    load: RequestLoad
    input_tokens: int
    output_tokens: int
    tokens_per_s: Spread
    seconds: Spread
    first_token_s: Spread
    steps: int
    kinds: dict[str, int]

    def as_object(self) -> dict[str, object]:
        return {
            "load": self.load.name,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tokens_per_s": asdict(self.tokens_per_s),
            "seconds": asdict(self.seconds),
            "median_first_token_s": asdict(self.first_token_s),
            "num_steps": self.steps,
            "steps": self.kinds,
        }


def request_line(cell: RequestCell) -> str:
    """A cell in a line."""
    return f"{cell.load.name}   {cell.tokens_per_s} output tokens/s   {cell.seconds} s for {cell.output_tokens} tokens"


def bench_requests(
    loaded: LoadedModel, load: RequestLoad, config: EngineConfig, rounds: int, on_first_token: Callable[[], None]
) -> RequestCell:
    """Answer them `rounds` times, after a first time that warms up: kernels are compiled and graphs recorded in it."""
    engine = RequestEngine(loaded, load, config)
    engine.run(on_first_token)
    keep_what_is_there()  # as the process of a server's engine does
    done = [engine.run() for _ in range(rounds)]
    return RequestCell(
        load,
        sum(prompt for prompt, _ in load.lengths()),
        done[-1].output_tokens,
        Spread.of([each.output_tokens / each.seconds for each in done]),
        Spread.of([each.seconds for each in done]),
        Spread.of([each.first_token_s for each in done]),
        done[-1].steps,
        done[-1].kinds,
    )


class RequestEngine:
    """An engine that holds all requests of a load at once. Every round has prompts of its own, of the same lengths."""

    def __init__(self, loaded: LoadedModel, load: RequestLoad, config: EngineConfig) -> None:
        settings = EngineConfig(
            storage="paged",
            block_size=config.block_size,
            max_context=2 * load.most + 1,
            max_num_seqs=load.count,
            num_kv_blocks=sum(-(-sum(each) // config.block_size) + 2 for each in load.lengths()),
            prefill_chunk=_CHUNK,
            max_batch_tokens=2 * _CHUNK,
            kv_dtype=config.kv_dtype,
            dtype=config.dtype,
            device=config.device,
            threads=config.threads,
            decode_lookahead=config.decode_lookahead,
            cuda_graphs=config.cuda_graphs,
            exact=config.exact,
        )
        decision = StorageDecision(StorageKind.PAGED, "the benchmark's")
        self.core = EngineCore(share_weights(loaded, settings, decision), settings)
        self._load = load
        self._vocab_size = loaded.plan.config.vocab_size
        self._rounds = 0

    def run(self, on_first_token: Callable[[], None] = lambda: None) -> RequestRound:
        """Add all requests, then step until the last is answered; the clock starts before they are added."""
        self._rounds += 1
        draw = random.Random(self._rounds)
        requests = [
            Request(
                f"{self._rounds}-{i}",
                tuple(draw.choices(range(self._vocab_size), k=prompt)),
                SamplingParams(max_tokens=answer, ignore_eos=True),
                0,
            )
            for i, (prompt, answer) in enumerate(self._load.lengths())
        ]
        graphs = self.core.runner.graphs
        before = dict(graphs.counts) if graphs is not None else {}
        first: dict[str, float] = {}
        tokens = steps = 0
        began = time.perf_counter()
        for request in requests:
            self.core.add(request)
        while self.core.has_work:
            events = self.core.step()
            now = time.perf_counter() - began
            steps += 1
            for event in events:
                assert event.error is None, event.error
                tokens += len(event.delta.token_ids)
                first.setdefault(event.delta.request_id, now)
            if events:
                on_first_token()
        seconds = time.perf_counter() - began
        counts = {} if graphs is None else {name: n - before.get(name, 0) for name, n in graphs.counts.items()}
        return RequestRound(seconds, tokens, Spread.of(list(first.values())).median, steps, counts)
