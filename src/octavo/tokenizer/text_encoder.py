"""Text to ids, without begin- or end-of-text: the seam between `Tokenizer` and the ways to build one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer as TokenizersPipeline

from octavo.tokenizer.splitter import SpecialSplitter
from octavo.tokenizer.text_bound import TextBound
from octavo.tokenizer.vocabulary import Vocabulary

Fragment = str | int  # plain text, or the id of a token that the text spelled
_SHORT_CHARS = 4096  # encoded in well under a millisecond


def pipeline_ids(pipeline: TokenizersPipeline, text: str) -> list[int]:
    """Ids of `text` without what the pipeline would put at its ends. While it is at a long text, other threads run."""
    if len(text) <= _SHORT_CHARS:
        encoding = pipeline.encode(text, add_special_tokens=False)
    else:  # the same ids, but `encode` holds the GIL until it is done: a second or two per megabyte
        [encoding] = pipeline.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


class TextEncoder(Protocol):
    """Encodes text; adds no begin- or end-of-text."""

    @property
    def control(self) -> SpecialSplitter:
        """Finds the tokens that text may only become where control tokens are parsed."""

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Ids of `text`, in which control tokens are tokens (`parse_special`) or mere text."""

    def encode_fragments(self, fragments: Iterable[Fragment]) -> list[int]:
        """Ids of alternating control tokens and plain text, in which nothing is a control token any more."""


class SplittingEncoder:
    """Cuts out special tokens first, then encodes each run of text between them by itself."""

    def __init__(
        self,
        encode_run: Callable[[str, bool], list[int]],
        control: Mapping[str, int],
        always: Mapping[str, int],
        rstrip: frozenset[int] = frozenset(),
    ) -> None:
        """`encode_run(text, after_special)` encodes a run that begins the text or follows a special token, or not.

        `control` tokens are found on request, `always` tokens in any text.
        """
        self._encode_run = encode_run
        self.control = SpecialSplitter(control, rstrip=rstrip)
        self._always = SpecialSplitter(always, rstrip=rstrip)
        self._all = SpecialSplitter({**always, **control}, rstrip=rstrip)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """See TextEncoder."""
        return self._encode_split((self._all if parse_special else self._always).split(text))

    def encode_fragments(self, fragments: Iterable[Fragment]) -> list[int]:
        """See TextEncoder."""
        split: list[Fragment] = []
        for fragment in fragments:
            split += [fragment] if isinstance(fragment, int) else self._always.split(fragment)
        return self._encode_split(split)

    def _encode_split(self, fragments: Iterable[Fragment]) -> list[int]:
        ids: list[int] = []
        after_special = True
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self._encode_run(fragment, after_special)
            after_special = isinstance(fragment, int)
        return ids


@dataclass(frozen=True)
class TokenizerParts:
    """All that a `Tokenizer` is made of, however it was described."""

    vocabulary: Vocabulary
    encoder: TextEncoder
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    prefix_ids: tuple[int, ...]  # what `add_special_tokens` puts before and after a text
    suffix_ids: tuple[int, ...]
    strip_leading_space: bool  # encoding adds one space at the front, so decoding takes one off
    chat_templates: Mapping[str, str]  # by name; "default" is the usual one
    special_texts: Mapping[str, str]  # template variables: bos_token, eos_token, unk_token, pad_token
    bound: TextBound | None = None  # on the tokens of a text; None where nothing is certain
