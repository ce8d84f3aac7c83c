"""Chat with a server through OpenAI's own client, and print answers as they come.

    octavo serve -m qwen05
    python examples/streaming_chat.py

Each line of standard input is a turn. The conversation is kept here and sent again with every turn; what the server
has computed of it already, it finds in its prefix cache.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat with a server and stream its answers.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="if the server asks for one")
    parser.add_argument("-n", "--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.7)
    given = parser.parse_args()

    client = OpenAI(base_url=given.url, api_key=given.api_key)
    model = client.models.list().data[0].id  # an Octavo server has one model
    messages: list[Any] = []
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.rstrip("\n")})
        stream = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=given.max_tokens,
            temperature=given.temperature,
            stream=True,
            stream_options={"include_usage": True},
        )
        answer = ""
        for chunk in stream:
            # The last chunk has the usage and no choice.
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                answer += piece
                print(piece, end="", flush=True)
            if chunk.usage is not None:
                print(f"\n  [{chunk.usage.completion_tokens} tokens]")
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
