"""Makes token ids of what a client sent, off the event loop where that takes long, and checks that they can run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from octavo.engine.serving import ModelInfo
from octavo.errors import InvalidRequest, PromptTooLong
from octavo.server.errors import HttpError, invalid
from octavo.server.fill_in import FillIn
from octavo.server.generation import Prompt
from octavo.server.protocol.completions import CompletionRequest
from octavo.server.settings import ServerSettings
from octavo.tokenizer import Tokenizer

INLINE_CHARS = 4096  # encoding so much takes well under a millisecond
MOST_COUNTED_CHARS = 1 << 20
CHARS_PER_TOKEN = 8  # more than in any usual text: what fills the longest contexts may be counted, too

Result = TypeVar("Result")


async def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    info: ModelInfo,
    is_answered: bool = True,
) -> tuple[int, ...]:
    """Ids of a conversation in the model's template. Raises a 400 `HttpError` if the template refuses it.

    `messages` are those of `template_messages`. One that is far too long to be answered, or if it is only counted, has
    more than `most_counted_chars`, is not encoded first.
    """
    size = _chars((messages, tools, variables))
    most_tokens, most_chars = (info.max_prompt_tokens, None) if is_answered else (None, most_counted_chars(info))
    encode = partial(
        tokenizer.encode_chat, messages, tools=tools, most_tokens=most_tokens, most_chars=most_chars, **variables
    )
    try:
        return tuple(await _encoded(encode, size))
    except PromptTooLong as error:
        raise _too_long("messages", error.num_tokens, info.max_prompt_tokens, info, at_least=True) from error
    except InvalidRequest as error:
        raise invalid(str(error), param="messages") from error


async def completion_prompts(
    tokenizer: Tokenizer, request: CompletionRequest, info: ModelInfo, fill_in: FillIn | None = None
) -> list[Prompt]:
    """The prompts of `request`. Text is given the model's own first token, ids are taken as they are.

    With `fill_in` each asks for what stands between it and the request's suffix. Raises a 400 `HttpError` for text that
    is far too long, before it is encoded.
    """
    texts = [each for each in request.prompts if isinstance(each, str)]
    check_texts(texts, tokenizer, info, "prompt", generates=request.max_tokens != 0)
    check_texts([request.suffix or ""], tokenizer, info, "suffix")
    if fill_in is not None:
        return [await _fill_in_prompt(tokenizer, fill_in, each, request.suffix or "") for each in request.prompts]
    echo = bool(request.echo)
    prompts = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            ids = await text_prompt(tokenizer, prompt)
            prompts.append(Prompt(tuple(ids), prompt if echo else None))
        else:
            prompts.append(Prompt(tuple(prompt), tokenizer.decode(prompt) if echo else None))
    return prompts


async def _fill_in_prompt(tokenizer: Tokenizer, fill_in: FillIn, prompt: str | list[int], suffix: str) -> Prompt:
    after = await text_prompt(tokenizer, suffix, add_special_tokens=False)
    if isinstance(prompt, str):
        first, before = tokenizer.encode(""), await text_prompt(tokenizer, prompt, add_special_tokens=False)
    else:
        first, before = [], prompt
    return Prompt(fill_in.prompt(first, before, after))


async def text_prompt(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Ids of `text`, in which control tokens are plain text."""
    return await _encoded(lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens), len(text))


async def counted_text(tokenizer: Tokenizer, text: str, info: ModelInfo, *, add_special_tokens: bool) -> list[int]:
    """`text_prompt` of a text that nobody answers. Raises a 400 `HttpError` for more than `most_counted_chars`."""
    if len(text) > (most := most_counted_chars(info)):
        raise invalid(
            f"prompt has {len(text)} characters; at most {most} are encoded at once, send it in parts", param="prompt"
        )
    return await text_prompt(tokenizer, text, add_special_tokens=add_special_tokens)


def most_counted_chars(info: ModelInfo) -> int:
    """Characters of what is counted in one call, and not answered: seconds of work, also of the strangest text."""
    return max(MOST_COUNTED_CHARS, CHARS_PER_TOKEN * info.max_context)


def check_counts(settings: ServerSettings, num_prompts: int, n: int) -> None:
    """Raises a 400 `HttpError` for more prompts or choices than one call may have."""
    if num_prompts > settings.max_prompts:
        raise invalid(
            f"prompt has {num_prompts} prompts; at most {settings.max_prompts} are taken in one call, send more calls",
            param="prompt",
        )
    if num_prompts * n > settings.max_choices:
        raise invalid(
            f"n is {n} for {num_prompts} prompt(s), {num_prompts * n} choices in all; "
            f"at most {settings.max_choices} are given in one call, lower n",
            param="n",
        )


def check_texts(
    texts: Sequence[str], tokenizer: Tokenizer, info: ModelInfo, field: str, *, generates: bool = True
) -> None:
    """Raises a 400 `HttpError` naming `field` for a text that is certain to be too long, whatever its tokens are."""
    most = info.max_prompt_tokens if generates else info.max_context
    for text in texts:
        if (least := tokenizer.least_tokens(text)) > most:
            raise _too_long(field, least, most, info, at_least=True)


def check_prompts(prompts: Sequence[Sequence[int]], info: ModelInfo, field: str, *, generates: bool = True) -> None:
    """Raises a 400 `HttpError` naming `field` for a prompt that is empty, too long, or not of this vocabulary.

    One after which nothing is generated may take the whole context.
    """
    most = info.max_prompt_tokens if generates else info.max_context
    for number, ids in enumerate(prompts):
        name = field if len(prompts) == 1 else f"{field}[{number}]"
        if not ids:
            raise invalid(
                f"{name} has no tokens, and this model has no token of its own to begin with; give some text",
                param=field,
            )
        if len(ids) > most:
            raise _too_long(name, len(ids), most, info)
        check_token_ids(ids, info, name, param=field)


def check_token_ids(ids: Sequence[int], info: ModelInfo, name: str, param: str) -> None:
    """Raises a 400 `HttpError` naming an id that the vocabulary does not have. `ids` are not negative."""
    if ids and max(ids) >= info.vocab_size:
        raise invalid(f"{name} has token id {max(ids)}; the vocabulary has ids 0 to {info.vocab_size - 1}", param=param)


def _too_long(name: str, num_tokens: int, most: int, info: ModelInfo, *, at_least: bool = False) -> HttpError:
    count = f"at least {num_tokens}" if at_least else num_tokens
    return invalid(
        f"this model's maximum context length is {info.max_context} tokens and {name} has {count}; "
        f"shorten it to at most {most}",
        param=name.split("[", 1)[0],
        code="context_length_exceeded",
    )


def _chars(data: object) -> int:
    """Of all strings in plain data: of what a template makes text of, wherever it finds it."""
    if isinstance(data, str):
        return len(data)
    if isinstance(data, Mapping):
        return sum(_chars(name) + _chars(value) for name, value in data.items())
    return sum(map(_chars, data)) if isinstance(data, Sequence) else 0


async def _encoded(encode: Callable[[], Result], size: int) -> Result:
    if size <= INLINE_CHARS:
        return encode()
    return await asyncio.to_thread(encode)
