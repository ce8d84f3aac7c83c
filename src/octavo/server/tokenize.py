"""/tokenize and /detokenize: what a generation call would make of a prompt, and token ids as text."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.server.errors import invalid
from octavo.server.logprobs import token_string
from octavo.server.prompts import INLINE_CHARS, chat_prompt, check_token_ids, counted_text, most_counted_chars
from octavo.server.protocol.answers import Detokenized, Tokenized
from octavo.server.protocol.messages import template_messages, template_variables
from octavo.server.protocol.parsing import parse
from octavo.server.protocol.tokens import DetokenizeRequest, TokenizeChat, TokenizeText
from octavo.server.state import ServerState

MAX_TOKEN_STRINGS = 100_000


async def answer_tokenize(state: ServerState, body: dict[str, Any]) -> Tokenized:
    """The ids of a text or of a conversation. Raises an `OctavoError` for one that has none."""
    is_text = body.get("messages") is None
    request = parse(TokenizeText, body) if is_text else parse(TokenizeChat, body)
    state.check_model(request.model)
    info, tokenizer = state.ready_model()
    if isinstance(request, TokenizeChat):
        variables = template_variables(request.chat_template_kwargs, request.add_generation_prompt)
        messages = template_messages(request.messages, tokenizer.chat_template)
        ids = list(await chat_prompt(tokenizer, messages, variables, info=info, is_answered=False))
    else:
        specials = request.add_special_tokens is not False
        ids = await counted_text(tokenizer, request.prompt, info, add_special_tokens=specials)
    texts = None
    if request.return_token_strs:
        if len(ids) > MAX_TOKEN_STRINGS:
            raise invalid(
                f"return_token_strs is for at most {MAX_TOKEN_STRINGS} tokens, and here are {len(ids)}; leave it out",
                param="return_token_strs",
            )
        texts = [token_string(tokenizer, each) for each in ids]
    return Tokenized(count=len(ids), max_model_len=info.max_context, tokens=ids, token_strs=texts)


async def answer_detokenize(state: ServerState, body: dict[str, Any]) -> Detokenized:
    """The text of token ids. Raises an `OctavoError` for too many of them, and for one outside the vocabulary."""
    request = parse(DetokenizeRequest, body)
    state.check_model(request.model)
    info, tokenizer = state.ready_model()
    ids, skip = request.tokens, bool(request.skip_special_tokens)
    if len(ids) > (most := most_counted_chars(info)):  # as many as /tokenize takes characters
        raise invalid(
            f"tokens has {len(ids)} ids; at most {most} are decoded at once, send them in parts", param="tokens"
        )
    check_token_ids(ids, info, "tokens", param="tokens")
    if len(ids) <= INLINE_CHARS:
        return Detokenized(prompt=tokenizer.decode(ids, skip_special_tokens=skip))
    text = await asyncio.to_thread(tokenizer.decode, ids, skip_special_tokens=skip)
    return Detokenized(prompt=text)
