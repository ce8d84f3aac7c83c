"""Find the lines of a file that are nearest in meaning to a query, by embeddings.

    octavo serve -m qwen05
    python examples/embeddings_search.py "how to bound memory" README.md

Vectors have length 1, so the dot product is the cosine. Any served model gives vectors; how good they are is a matter
of its training, and an embedding model's are better.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from openai import OpenAI

MAX_INPUTS = 128  # of one request


def main() -> None:
    parser = argparse.ArgumentParser(description="Search the lines of a file by meaning.")
    parser.add_argument("query")
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none", help="if the server asks for one")
    parser.add_argument("--top", type=int, default=3, help="lines to show")
    given = parser.parse_args()

    client = OpenAI(base_url=given.url, api_key=given.api_key)
    model = client.models.list().data[0].id

    def embed(texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), MAX_INPUTS):
            found = client.embeddings.create(model=model, input=texts[start : start + MAX_INPUTS])
            vectors += [each.embedding for each in found.data]
        return vectors

    lines = [line.strip() for line in given.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    query = embed([given.query])[0]
    scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in embed(lines)]
    for score, line in sorted(zip(scores, lines, strict=True), reverse=True)[: given.top]:
        print(f"{score:.3f}  {line}")


if __name__ == "__main__":
    main()
