"""Have a model answer with JSON of a given schema, offline.

    python examples/structured_output.py -m qwen05 "Describe the city of Bonn as JSON."

At every step the tokens that would break the schema are forbidden. So an answer that ends by itself always matches;
one that runs out of tokens says so by its finish reason, `length`.
"""

from __future__ import annotations

import argparse
import json
import sys

from octavo import LLM, GrammarSpec, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "continent": {"enum": ["Africa", "Asia", "Europe", "North America", "Oceania", "South America"]},
        "has_harbour": {"type": "boolean"},
    },
    "required": ["city", "continent", "has_harbour"],
    "additionalProperties": False,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Answer with JSON of a schema.")
    parser.add_argument("question")
    parser.add_argument("-m", "--model", default="smollm2", help="a .gguf file, a directory, or an alias")
    parser.add_argument("-n", "--max-tokens", type=int, default=200)
    given = parser.parse_args()

    llm = LLM(given.model)
    params = SamplingParams(max_tokens=given.max_tokens, grammar=GrammarSpec.json_schema(SCHEMA))
    # Tell the model what is wanted, too: the mask only forbids.
    question = f"{given.question}\nAnswer with JSON of this schema: {json.dumps(SCHEMA)}"
    choice = llm.chat([{"role": "user", "content": question}], params)[0].outputs[0]
    if choice.finish_reason != "stop":
        print(f"the answer was cut ({choice.finish_reason}); give more tokens", file=sys.stderr)
        return 1
    for name, value in json.loads(choice.text).items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
