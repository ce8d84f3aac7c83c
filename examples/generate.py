"""Complete several prompts offline: no server, one batch, results in the order of the prompts.

python examples/generate.py -m smollm2 "The capital of France is" "A haiku about the sea:"
"""

from __future__ import annotations

import argparse

from octavo import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description="Complete several prompts offline.")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("-m", "--model", default="smollm2", help="a .gguf file, a directory, or an alias")
    parser.add_argument("-n", "--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    llm = LLM(given.model)
    # Randomness is a function of the seed and the position, so the same call gives the same texts again,
    # whatever else is in the batch. A temperature of 0 (the default) would be greedy.
    params = SamplingParams(max_tokens=given.max_tokens, temperature=0.7, seed=given.seed)

    for prompt, output in zip(given.prompts, llm.generate(given.prompts, params), strict=True):
        choice = output.outputs[0]
        print(f"{prompt}{choice.text}")
        print(f"  [{choice.finish_reason}; {output.usage.completion_tokens} tokens]")


if __name__ == "__main__":
    main()
