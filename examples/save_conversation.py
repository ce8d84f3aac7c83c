"""Go on with a conversation in another process without computing it again: its K/V is saved in a file.

    python examples/save_conversation.py -m qwen05 talk "Name a harbour town."
    python examples/save_conversation.py -m qwen05 talk "And another one?"

Each call is one turn. talk.json keeps the messages, talk.kv the K/V of all of them. A snapshot fits the model, weights
and K/V encoding that it was taken from, whatever the storage; anything else is refused.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from octavo import LLM, KVSnapshot, SamplingParams
from octavo.outputs import RequestOutput


def main() -> None:
    parser = argparse.ArgumentParser(description="One turn of a conversation that is kept in files.")
    parser.add_argument("name", type=Path, help="of the conversation; its files are NAME.json and NAME.kv")
    parser.add_argument("question")
    parser.add_argument("-m", "--model", default="smollm2", help="a .gguf file, a directory, or an alias")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    given = parser.parse_args()
    text_file, kv_file = given.name.with_suffix(".json"), given.name.with_suffix(".kv")

    llm = LLM(given.model, storage="paged")
    messages = json.loads(text_file.read_text(encoding="utf-8")) if text_file.exists() else []
    snapshot = KVSnapshot.load(kv_file) if kv_file.exists() else None

    messages.append({"role": "user", "content": given.question})
    prompt = llm.tokenizer.encode_chat(messages)
    answer = ""
    for item in llm.stream(prompt, SamplingParams(max_tokens=given.max_tokens), snapshot=snapshot):
        if isinstance(item, RequestOutput):
            print(f"\n  [{item.usage.cached_tokens} of {item.usage.prompt_tokens} prompt tokens restored]")
        else:
            answer += item.text
            print(item.text, end="", flush=True)
    messages.append({"role": "assistant", "content": answer})

    # A snapshot holds what was computed but the last token. So the conversation as the template writes it, answer
    # included, is asked for one token more. It is in the prefix cache but for a few tokens.
    saved: list[KVSnapshot] = []
    whole = llm.tokenizer.encode_chat(messages, add_generation_prompt=False)
    for _ in llm.stream(whole, SamplingParams(max_tokens=1, ignore_eos=True), on_snapshot=saved.append):
        pass
    saved[0].save(kv_file)
    text_file.write_text(json.dumps(messages), encoding="utf-8")


if __name__ == "__main__":
    main()
