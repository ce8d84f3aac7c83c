"""The two processes that `octavo bench overhead` compares, both over the mock model: a server, and an engine alone.

python -m octavo.bench.overhead_child server SETTINGS     prints {"url"}, serves until SIGTERM
python -m octavo.bench.overhead_child engine SETTINGS     prints {}, then answers a JSON line per line
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import asdict, dataclass

from octavo.bench.mock_model import MOCK_ENGINE, MockSettings, mock_model
from octavo.config import EngineConfig
from octavo.engine.async_client import ProcessEngine, ServingLimits
from octavo.engine.client import InProcessClient
from octavo.engine.core import EngineCore
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server import serve
from octavo.server.listener import listen, url_of
from octavo.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class AloneRun:
    """Sequences run by the engine in its caller's thread, as `LLM` does it."""

    wall_s: float
    cpu_s: float
    output_tokens: int
    first_token_s: float


def main() -> None:
    """Be the process that the arguments ask for."""
    role, settings = sys.argv[1], MockSettings(**json.loads(sys.argv[2]))
    if role == "server":
        run_server(settings)
    else:
        run_engine(settings)


def run_server(settings: MockSettings) -> None:
    with listen("127.0.0.1", 0) as listener:
        print(json.dumps({"url": url_of(listener, tls=False)}), flush=True)
        engine = ProcessEngine(MOCK_ENGINE, (settings,), ServingLimits())
        sys.exit(serve.serve(engine, ServerSettings(port=0, log_level="warning"), listener))


def run_engine(settings: MockSettings) -> None:
    config = EngineConfig(
        max_context=settings.max_context,
        max_num_seqs=settings.max_num_seqs,
        max_batch_tokens=settings.max_batch_tokens,
        prefill_chunk=settings.max_batch_tokens,
        prefix_cache=settings.prefix_cache,
        threads=1,
    )
    alone = EngineAlone(config, settings.step_s)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(alone.run(**json.loads(line)))), flush=True)


class EngineAlone:
    """The engine over the mock model, without a server."""

    def __init__(self, config: EngineConfig, step_s: float) -> None:
        loaded = mock_model(config, step_s)
        self._client = InProcessClient(EngineCore(loaded, config))
        self._vocab_size = loaded.tokenizer.vocab_size
        self._num_requests = 0

    def run(self, sequences: int, prompt_tokens: int, max_tokens: int) -> AloneRun:
        """Run so many sequences at once, each with a prompt of its own, to exactly `max_tokens` tokens."""
        requests = [self._request(prompt_tokens, max_tokens) for _ in range(sequences)]
        num_tokens, first = 0, 0.0
        cpu, began = time.process_time(), time.perf_counter()
        for event in self._client.run(requests):
            if not num_tokens:
                first = time.perf_counter() - began
            num_tokens += len(event.delta.token_ids)
        return AloneRun(time.perf_counter() - began, time.process_time() - cpu, num_tokens, first)

    def _request(self, prompt_tokens: int, max_tokens: int) -> Request:
        self._num_requests += 1
        draw = random.Random(self._num_requests)
        prompt = tuple(draw.choices(range(3, self._vocab_size), k=prompt_tokens))
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        return Request(str(self._num_requests), prompt, params, seed=0)


if __name__ == "__main__":
    main()
