"""The prompts of a parity run: four lengths, the last longer than any sliding window of the model."""

from __future__ import annotations

from bisect import bisect_left

from octavo.tokenizer import Tokenizer

_SHORT = "The lighthouse keeper counted the ships that passed before noon, and"
_CODE = "def moving_average(values, width):\n    total = 0.0\n    for index, value in enumerate(values):\n"
_STORY = (
    "Every morning the baker of the small town lit the oven before the sun was up. "
    "He weighed the flour, he warmed the water, and he thought about the day that would come. "
    "The first to knock was always the schoolteacher, who wanted two rolls and the news of the street. "
)


def parity_prompts(tokenizer: Tokenizer, longest: int) -> list[str]:
    """Four texts; the last has at least `longest` tokens, and hardly more."""
    story = _STORY
    number = 1
    while len(tokenizer.encode(story)) < longest:
        number += 1
        story += f"Day {number}. {_STORY}"
    words = story.split(" ")
    enough = bisect_left(range(len(words)), longest, key=lambda n: len(tokenizer.encode(" ".join(words[:n]))))
    return [_SHORT, _CODE, _STORY, " ".join(words[:enough])]
