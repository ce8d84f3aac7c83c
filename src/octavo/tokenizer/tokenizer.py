"""The tokenizer of a model: text, chats and bytes to ids and back. How it is built lies in gguf.py and directory.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import InvalidRequest, PromptTooLong
from octavo.tokenizer.control_text import ControlTextMarks
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.directory import parts_from_directory
from octavo.tokenizer.gguf import parts_from_gguf
from octavo.tokenizer.messages import check_messages, normalize_messages, normalize_tools, plain_data
from octavo.tokenizer.text_encoder import TokenizerParts

if TYPE_CHECKING:
    from octavo.tokenizer.chat_template import ChatTemplate

_NAME = "general.name"  # GGUF's; some tokens of some models depend on it
_Recipe = tuple[Callable[..., "Tokenizer"], tuple[Any, ...]]


class Tokenizer:
    """Encodes and decodes for one model. Safe to share between threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._vocabulary = parts.vocabulary
        self._recipe: _Recipe | None = None

    def __reduce__(self) -> _Recipe:
        """A tokenizer goes to another process as what it was made from."""
        if self._recipe is None:
            raise TypeError("a tokenizer made from parts cannot be pickled; make it from metadata or a directory")
        return self._recipe

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], *, force: bool = False) -> Tokenizer:
        """From GGUF metadata: plain Python values under keys such as `tokenizer.ggml.model`.

        Raises LoadError for what is not supported; `force` accepts an unknown pre-tokeniser, with a logged warning.
        """
        made = cls(parts_from_gguf(metadata, force=force))
        needed = {key: value for key, value in metadata.items() if key.startswith("tokenizer.") or key == _NAME}
        made._recipe = (partial(cls.from_gguf, force=force), (needed,))
        return made

    @classmethod
    def from_directory(cls, path: Path, *, extra_eos_ids: Iterable[int] = ()) -> Tokenizer:
        """From a Hugging Face directory with a tokenizer.json; `extra_eos_ids` are those of the model's config.

        Raises LoadError if a file is missing, broken or of an unsupported kind.
        """
        extra_eos_ids = tuple(extra_eos_ids)
        made = cls(parts_from_directory(path, extra_eos_ids))
        made._recipe = (partial(cls.from_directory, extra_eos_ids=extra_eos_ids), (path.absolute(),))
        return made

    @property
    def vocab_size(self) -> int:
        """Number of ids, from 0, that decode."""
        return len(self._vocabulary)

    @property
    def bos_token_id(self) -> int | None:
        """The begin-of-text id, if the model has one."""
        return self._parts.bos_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a turn or the text."""
        return self._parts.eos_token_ids

    @property
    def control_token_ids(self) -> frozenset[int]:
        """Every id that no ordinary text may become, and that decoding skips."""
        return self._vocabulary.control_ids

    def control_pieces(self, text: str) -> list[str | int]:
        """`text` in its order: the ids of the control tokens that it spells, and what stands between them."""
        return self._parts.encoder.control.split(text)

    @property
    def chat_template(self) -> str | None:
        """Source of the usual chat template, if the model has one."""
        return self._parts.chat_templates.get("default")

    def least_tokens(self, text: str) -> int:
        """At most as many as `encode` makes of `text`, at once and however long it is; 0 if that is all one can say."""
        bound = self._parts.bound
        return 0 if bound is None else bound.least_tokens(text)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of `text`; control tokens in it are tokens only with `parse_special`, else text.

        `add_special_tokens` adds what the model's files say belongs at the ends, begin-of-text never twice. Raises
        InvalidRequest for an unpaired surrogate.
        """
        _check_unicode(text)
        ids = self._parts.encoder.encode(text, parse_special=parse_special)
        if not add_special_tokens:
            return ids
        prefix, suffix = list(self._parts.prefix_ids), list(self._parts.suffix_ids)
        if parse_special and prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if parse_special and suffix and ids[-len(suffix) :] == suffix:
            suffix = []
        return prefix + ids + suffix

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`: their bytes joined, as UTF-8, with U+FFFD for what is not.

        Where encoding adds a space at the front (Llama's SentencePiece), exactly one leading space is taken off.
        Padding ids past the vocabulary are nothing. Raises InvalidRequest for a negative id.
        """
        visible = self._visible_bytes if skip_special_tokens else self._vocabulary.token_bytes
        text = b"".join(map(visible, ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._parts.strip_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes one token stands for; none past the vocabulary. Raises InvalidRequest for a negative id."""
        return self._vocabulary.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """The token as the files spell it; empty past the vocabulary. Raises InvalidRequest for a negative id."""
        return self._vocabulary.token_text(token_id)

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        shown_ids: Collection[int] = (),
        keep_leading_space: bool = False,
    ) -> IncrementalDetokenizer:
        """A fresh detokenizer whose joined deltas equal `decode` of the same ids.

        `shown_ids` are control tokens that are not skipped. `keep_leading_space`: the ids' bytes are what was asked
        for, to the first one, so nothing is taken off.
        """
        visible = self._vocabulary.token_bytes
        if skip_special_tokens:
            hidden = self._vocabulary.control_ids.difference(shown_ids)
            visible = partial(_unless_hidden, hidden, visible) if shown_ids else self._visible_bytes
        strip = self._parts.strip_leading_space and not keep_leading_space
        return IncrementalDetokenizer(visible, strip_leading_space=strip)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """The conversation as the model's template writes it; further arguments are template variables.

        Raises InvalidRequest if there is no template, or for messages that it or this method refuses.
        """
        rendered, marks = self._render_marked(messages, tools, add_generation_prompt, template_kwargs)
        return marks.remove(rendered)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        most_tokens: int | None = None,
        most_chars: int | None = None,
        **template_kwargs: Any,
    ) -> list[int]:
        """Ids of the rendered conversation. The template's control tokens are tokens; those that users spell are text.

        Begin-of-text is there if the template writes it, once. Raises InvalidRequest as `render_chat` does and for more
        than `most_chars` characters, and PromptTooLong, soon, where more than `most_tokens` are certain; they may be
        more all the same.
        """
        rendered, marks = self._render_marked(messages, tools, add_generation_prompt, template_kwargs)
        _check_unicode(rendered)
        if most_chars is not None and (size := len(marks.remove(rendered))) > most_chars:
            raise InvalidRequest(
                f"the conversation has {size} characters; at most {most_chars} are encoded at once, shorten it"
            )
        if most_tokens is not None and (least := self.least_tokens(marks.remove(rendered))) > most_tokens:
            raise PromptTooLong(least, most_tokens)
        if marks.found_in(rendered):
            return self._single_bos(self._parts.encoder.encode_fragments(marks.fragments(rendered)))
        return self._single_bos(self._parts.encoder.encode(rendered, parse_special=True))

    def _single_bos(self, ids: list[int]) -> list[int]:
        bos = self.bos_token_id
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    def _render_marked(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> tuple[str, ControlTextMarks]:
        from octavo.tokenizer.chat_template import ToolCallStyle

        template = self._template("tool_use" if tools else "default")
        check_messages(messages)
        style = template.tool_calls if any(message.get("tool_calls") for message in messages) else ToolCallStyle()
        conversation = {
            "messages": normalize_messages(
                messages,
                takes_strings=template.takes_strings,
                takes_parts=template.takes_parts,
                text_arguments=style.text_arguments,
                null_content=style.null_content,
            ),
            "tools": normalize_tools(tools),
            "variables": {name: plain_data(value, name) for name, value in template_kwargs.items()},
        }
        marks = ControlTextMarks(self._parts.encoder.control, conversation)
        marked = marks.mark(conversation)
        rendered = template.render(
            marked["messages"],
            tools=marked["tools"],
            add_generation_prompt=add_generation_prompt,
            **marked["variables"],
        )
        return rendered, marks

    def _template(self, name: str) -> ChatTemplate:
        template = self._templates.get(name) or self._templates.get("default")
        if template is None:
            raise InvalidRequest("this model has no chat template; send the text itself with --raw (or a completion)")
        return template

    @cached_property
    def _templates(self) -> dict[str, ChatTemplate]:
        from octavo.tokenizer.chat_template import ChatTemplate  # Jinja is slow to import, and completions need none

        texts = self._parts.special_texts
        return {name: ChatTemplate(source, texts) for name, source in self._parts.chat_templates.items()}

    def _visible_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self._vocabulary.control_ids else self._vocabulary.token_bytes(token_id)


def _unless_hidden(hidden: Collection[int], token_bytes: Callable[[int], bytes], token_id: int) -> bytes:
    return b"" if token_id in hidden else token_bytes(token_id)


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise InvalidRequest(
            f"the text holds the unpaired surrogate {code} at character {error.start}; give valid Unicode"
        ) from error
