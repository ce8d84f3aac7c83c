"""Structured output through an engine in a child process: grammars cross to it, and their refusals come back."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

from octavo.config import EngineConfig
from octavo.engine.async_client import ProcessEngine
from octavo.engine.events import StepEvent
from octavo.grammar_spec import GrammarSpec
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.tiny_engines import prompt_of

GOOD = GrammarSpec.json_schema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
HOSTILE = GrammarSpec.json_schema(
    {
        "$ref": "#/$defs/a0",
        "$defs": {**{f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}, "a5000": {"type": "string"}},
    }
)


def test_a_hostile_grammar_in_a_served_engine_ends_its_own_request_alone(directory):
    async def run() -> tuple[list[StepEvent], list[StepEvent], str]:
        engine = ProcessEngine.for_model(directory("llama"), EngineConfig(threads=1, max_context=256), "tiny")
        await engine.start()

        async def events(name: str, grammar: GrammarSpec, max_tokens: int) -> list[StepEvent]:
            # The names of properties are the model's to choose; the biased end comes as soon as it may.
            bias = dict.fromkeys(engine.tokenizer.eos_token_ids, 50.0) | {engine.tokenizer.encode("}")[0]: 50.0}
            params = SamplingParams(max_tokens=max_tokens, temperature=1.0, grammar=grammar, logit_bias=bias)
            found: list[StepEvent] = []
            async with aclosing(engine.run([Request(name, prompt_of(5), params, 1)])) as batches:
                async for batch in batches:
                    found += batch
            return found

        try:
            good, hostile = await asyncio.gather(events("good", GOOD, 100), events("hostile", HOSTILE, 100))
            return good, hostile, engine.status.state
        finally:
            await engine.stop()

    good, hostile, state = asyncio.run(run())
    assert state == "ready"
    assert json.loads("".join(event.delta.text for event in good))["a"] in (True, False)
    assert good[-1].delta.finish_reason == "stop"
    [refused] = hostile
    assert refused.fault == "invalid_grammar" and "nested too deeply" in (refused.error or "")
