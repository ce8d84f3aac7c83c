"""Ask several questions on one document, and see that the server computes the document once.

    octavo serve -m qwen05
    python examples/prefix_sharing.py README.md "What is it?" "How is it installed?"

K/V is kept in blocks; a prompt that begins like an earlier one takes the blocks of their common beginning. So the
document has to come first, and the question after it. `cached_tokens` says how many tokens were not computed again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask several questions on one document.")
    parser.add_argument("document", type=Path)
    parser.add_argument("questions", nargs="+", metavar="QUESTION")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="if the server asks for one")
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    given = parser.parse_args()

    client = OpenAI(base_url=given.url, api_key=given.api_key)
    model = client.models.list().data[0].id
    document = given.document.read_text(encoding="utf-8")
    for question in given.questions:
        messages: list[Any] = [{"role": "user", "content": f"{document}\n\n{question}"}]
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=given.max_tokens, temperature=0
        )
        usage = answer.usage
        cached = usage.prompt_tokens_details.cached_tokens if usage and usage.prompt_tokens_details else 0
        print(f"{question}  [{cached} of {usage.prompt_tokens if usage else 0} prompt tokens cached]")
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
