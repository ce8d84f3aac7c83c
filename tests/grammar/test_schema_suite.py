"""The proof of structured output: schemas that nobody chose for it, random sampling, and an independent validator."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from octavo.engine.grammar_queue import GrammarQueue
from octavo.grammar.check_process import check
from octavo.grammar.compiler import GrammarCompiler
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams
from octavo.tokenizer import Tokenizer
from tests.engine.tiny_engines import Driver, open_model, prompt_of
from tests.grammar.schema_suite import SuiteSchema, suite
from tests.tiny_models import save_hf

DRAWN, VALID = 200, 150
MAX_TOKENS = 320
# A random model knows no end; this makes it likely to close what it has opened.
CLOSING = {'"': 3.5, "}": 3.5, "]": 3.5}
END_BIAS = 6.0

pytestmark = pytest.mark.weights


def closing_bias(tokenizer: Tokenizer) -> dict[int, float]:
    bias = dict.fromkeys(tokenizer.eos_token_ids, END_BIAS)
    for token_id in range(tokenizer.vocab_size):
        first = tokenizer.token_bytes(token_id)[:1].decode("latin-1")
        if first in CLOSING:
            bias[token_id] = CLOSING[first]
    return bias


def validate(drawn: SuiteSchema, text: str) -> None:
    """Raises if `text` is not JSON that the schema accepts, as jsonschema reads it."""
    validator = jsonschema.validators.validator_for({"$schema": drawn.dialect})
    validator(drawn.schema).validate(json.loads(text))


def test_answers_sampled_at_random_validate_against_schemas_drawn_from_the_suite(tmp_path: Path) -> None:
    save_hf(tmp_path, "llama", num_hidden_layers=1)
    loaded = open_model(tmp_path)
    drawn = random.Random(5).sample(suite(), DRAWN)
    driver = Driver(loaded, max_context=512, max_num_seqs=16)
    tokenizer = loaded.tokenizer
    # Checked in this process: the suite is not hostile, and 200 processes would take a while.
    driver.core.grammars = GrammarQueue(GrammarCompiler(tokenizer, loaded.plan.config.vocab_size, check))
    bias = closing_bias(tokenizer)
    for number, each in enumerate(drawn):
        grammar = GrammarSpec.json_schema(each.schema)
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, logit_bias=bias, grammar=grammar)
        driver.add(str(number), prompt_of(5, number), params, seed=number)
    outcomes = driver.run(100_000)

    reasons = Counter(outcome.finish_reason for outcome in outcomes.values())
    for number, each in enumerate(drawn):
        outcome = outcomes[str(number)]
        if outcome.finish_reason == "stop":
            validate(each, outcome.text)
        elif outcome.finish_reason == "error":
            assert outcome.error is not None and not outcome.token_ids
            assert outcome.error.startswith("the JSON schema") and "\n" not in outcome.error, outcome.error
            print(f"{each.place}: {outcome.error}")
    assert reasons["stop"] >= VALID, reasons
    assert reasons["length"] <= DRAWN // 20, reasons
    driver.assert_idle()
