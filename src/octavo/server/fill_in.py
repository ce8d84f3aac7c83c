"""Filling in the middle: a model's tokens for it, and the prompt that asks for what stands between two texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.server.errors import invalid
from octavo.tokenizer import Tokenizer

# Before the prefix, before the suffix, before the middle; in that order in a prompt.
_FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
# What else such models write where the middle ends: a padding, or the next file.
_ENDS = ("<|fim_pad|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<fim_pad>", "<file_sep>", "<repo_name>")


@dataclass(frozen=True, slots=True)
class FillIn:
    """Ids of a model's fill-in tokens; any of `ends` ends a middle."""

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]

    def prompt(self, first: Sequence[int], before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
        """Ids that ask for what stands between `before` and `after`; `first` is what the model's texts begin with."""
        return (*first, self.prefix, *before, self.suffix, *after, self.middle)


def fill_in_of(tokenizer: Tokenizer) -> FillIn | None:
    """The tokens that the vocabulary has as control tokens; None if it lacks one of the three."""
    for form in _FORMS:
        found = [_control_id(tokenizer, text) for text in form]
        if None not in found:
            prefix, suffix, middle = (each for each in found if each is not None)
            ends = [each for text in _ENDS if (each := _control_id(tokenizer, text)) is not None]
            return FillIn(prefix, suffix, middle, (prefix, suffix, middle, *ends))
    return None


def required_fill_in(tokenizer: Tokenizer) -> FillIn:
    """The same. Raises a 400 `HttpError` naming `suffix` for a model that has none."""
    found = fill_in_of(tokenizer)
    if found is None:
        raise invalid(
            "suffix is not supported: this model has no tokens for filling in; leave it out",
            param="suffix",
            code="unsupported_parameter",
        )
    return found


def _control_id(tokenizer: Tokenizer, text: str) -> int | None:
    pieces = tokenizer.control_pieces(text)
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], int) else None
