"""Let a model call functions: send it their descriptions, run what it calls, send the results back, until it answers.

    octavo serve -m qwen05
    python examples/tool_loop.py "Is it warmer in Bonn or in Porto?"

The server runs no function. It reads the calls out of what the model writes, in whatever form the model has for them.
So small a model calls the right function but may never put the result into words: then this script ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from openai import OpenAI

DEGREES = {"Bonn": 19, "Porto": 24}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_temperature",
            "description": "Tells the temperature in a city, in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": list(DEGREES)}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,  # a grammar holds the arguments to the schema
        },
    }
]
MAX_TURNS = 4


def get_temperature(city: str) -> str:
    return f"{DEGREES[city]} degrees"


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer a question with the help of a function.")
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="if the server asks for one")
    parser.add_argument("-n", "--max-tokens", type=int, default=256)
    given = parser.parse_args()

    client = OpenAI(base_url=given.url, api_key=given.api_key)
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": given.question}]
    for turn in range(MAX_TURNS):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            # The first answer has to be a call, which is enforced; later ones are as the model likes.
            tool_choice="auto" if turn else "required",
            max_tokens=given.max_tokens,
            temperature=0,
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            if not message.content:
                reason = answer.choices[0].finish_reason
                sys.exit(f"no answer: the model said nothing (it ended by {reason!r}); try a larger model")
            print(message.content)
            return
        for call in message.tool_calls:
            if call.type != "function":
                continue  # the client knows other types; this server writes none
            result = get_temperature(**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    sys.exit(f"no answer: the model called a function in each of {MAX_TURNS} turns; try a larger model")


if __name__ == "__main__":
    main()
