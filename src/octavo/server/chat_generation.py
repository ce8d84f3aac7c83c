"""From a chat request to the generation that answers it, for every API that is a conversation. It writes no answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.engine.serving import ModelInfo
from octavo.sampling_params import SamplingParams
from octavo.server.answer_reading import AnswerReading, answer_reading
from octavo.server.generation import Generation, Prompt
from octavo.server.prompts import chat_prompt, check_counts, check_prompts
from octavo.server.protocol.chat import ChatRequest
from octavo.server.protocol.messages import template_messages
from octavo.server.state import ServerState
from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat request whose prompt is tokens. `model` is the name that answers carry."""

    request: ChatRequest
    model: str
    info: ModelInfo
    tokenizer: Tokenizer
    reading: AnswerReading
    params: SamplingParams
    token_ids: tuple[int, ...]

    def generation(self, state: ServerState, kind: str) -> Generation:
        """What answers it; `kind` begins its id. Raises a 400 `HttpError` for a prompt that does not fit."""
        check_prompts([self.token_ids], self.info, "messages")
        reading, request = self.reading, self.request
        thinks = reading.thinks_already(self.token_ids)
        return Generation(
            state,
            [Prompt(self.token_ids)],
            reading.sampling_params(self.params, thinks=thinks),
            kind=kind,
            priority=request.priority or 0,
            cache_salt=request.cache_salt or "",
            new_reader=partial(reading.reader, thinks=thinks) if reading.parts_answers else None,
        )


async def prepared_chat(
    state: ServerState, request: ChatRequest, *, reads_stops: bool = False, is_answered: bool = True
) -> PreparedChat:
    """With `reads_stops` answers tell which stop string ended them. What is only counted, and not answered, may be far
    longer than the context. Raises an `OctavoError` if it cannot be served.
    """
    request.check()
    model = state.check_model(request.model)
    info, tokenizer = state.ready_model()
    check_counts(state.settings, 1, request.num_choices)
    params = request.sampling_params(info.vocab_size, request.token_limit, request.num_logprobs)
    has_form = params.grammar is not None
    reading = await answer_reading(state.forms, request, tokenizer, has_form=has_form, reads_stops=reads_stops)
    messages, tools = reading.conversation(template_messages(request.messages, tokenizer.chat_template))
    variables = request.template_variables
    token_ids = await chat_prompt(tokenizer, messages, variables, tools, info=info, is_answered=is_answered)
    return PreparedChat(request, model, info, tokenizer, reading, params, token_ids)
