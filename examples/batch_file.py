"""Answer every line of a file, without a server, and be able to go on after an interruption.

    python examples/batch_file.py questions.txt work -m smollm2

Writes work/requests.jsonl in OpenAI's batch format, has `octavo batch` answer it into work/answers.jsonl, and prints
question and answer in turn. Run again, it asks only for what has no answer yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer every line of a file.")
    parser.add_argument("questions", type=Path, help="a text file, one question a line")
    parser.add_argument("directory", type=Path, help="where requests and answers go")
    parser.add_argument("-m", "--model", default="smollm2", help="a .gguf file, a directory, or an alias")
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    given = parser.parse_args()

    questions = [line for line in given.questions.read_text(encoding="utf-8").splitlines() if line.strip()]
    given.directory.mkdir(parents=True, exist_ok=True)
    requests, answers = given.directory / "requests.jsonl", given.directory / "answers.jsonl"
    with requests.open("w", encoding="utf-8") as file:
        for number, question in enumerate(questions):
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": given.max_tokens, "seed": 1}
            line = {"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")

    command = [sys.executable, "-m", "octavo", "batch", str(requests), str(answers), "-m", given.model]
    subprocess.run(command, check=True)

    with answers.open(encoding="utf-8") as file:  # answers stand in the order of the requests
        for question, line in zip(questions, file, strict=True):
            response = json.loads(line)["response"]
            print(f"Q: {question}")
            if response["status_code"] == 200:
                print(f"A: {response['body']['choices'][0]['message']['content']}")
            else:
                print(f"refused: {response['body']['error']['message']}")


if __name__ == "__main__":
    main()
