"""How long a request may become, and the refusals of those that are too long or name unknown tokens."""

from __future__ import annotations

from octavo.engine.ledger import Ledger
from octavo.errors import CapacityError, InvalidRequest, OctavoError, shown
from octavo.models.config import ModelConfig
from octavo.request import Request


def most_tokens(request: Request, model: ModelConfig, ledger: Ledger) -> int:
    """Most tokens (prompt and output) the request may reach.

    Raises `InvalidRequest` if it cannot be served, `CapacityError` if it could with more memory.
    """
    prompt = request.prompt_token_ids
    if not prompt:
        raise InvalidRequest("the prompt has 0 tokens; give at least 1")
    low, high = min(prompt), max(prompt)
    if low < 0 or high >= model.vocab_size:
        bad = low if low < 0 else high
        raise InvalidRequest(
            f"the prompt has token id {shown(bad)}; the vocabulary has ids 0 to {model.vocab_size - 1}"
        )
    room = 0 if request.generates_nothing else 1
    if len(prompt) + room > ledger.max_context:
        raise _too_long(len(prompt), room, model, ledger)
    request.params.check_vocabulary(model.vocab_size)
    wanted = request.params.max_tokens
    # One that generates nothing still computes a token after its last, for which there need be no room.
    return ledger.max_context if wanted is None else min(ledger.max_context, len(prompt) + max(1, wanted))


def _too_long(num_prompt: int, room: int, model: ModelConfig, ledger: Ledger) -> OctavoError:
    most, limit = ledger.max_context, ledger.context_limit
    output = ", one of them for output" if room else ""
    if most < limit:
        return CapacityError(
            f"the prompt has {num_prompt} tokens; the K/V memory holds {most} of one sequence{output}: "
            f"shorten it to at most {most - room}, or raise the kv budget"
        )
    longest = model.max_position_embeddings
    remedy = f" or raise the max context (this model takes {longest})" if limit < longest else ""
    return InvalidRequest(
        f"the prompt has {num_prompt} tokens; the context holds {limit}{output}: shorten it to at most "
        f"{limit - room}{remedy}"
    )
