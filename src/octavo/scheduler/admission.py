"""Whether a request can be served at all, and what it will hold. Owns the refusals of requests at the door."""

from __future__ import annotations

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, encode_tokens
from octavo.errors import CapacityError, InvalidRequest
from octavo.request import RequestState
from octavo.scheduler.queue import WaitingRequest
from octavo.step_batch import StorageKind


def admit_to_queue(
    pool: CachePool,
    state: RequestState,
    storage: StorageKind,
    domain: PrefixDomain | None = None,
    reserve: bool = False,
    arrival: int = 0,
    waited: int = 0,
) -> WaitingRequest:
    """Check that `state` could run in an otherwise empty pool, and work out its blocks and, in a domain, its prefix.

    A paged request is promised blocks for the tokens it has, a dense one, or one with `reserve`, for all that it may
    come to have. Raises `InvalidRequest` if it has no prompt or no room for a new token that it wants, `CapacityError`
    if it can never fit.
    """
    num_prompt, total = len(state.request.prompt_token_ids), state.max_total_tokens
    if num_prompt == 0:
        raise InvalidRequest("the prompt has 0 tokens; give at least 1")
    if total <= num_prompt and not (total == num_prompt and state.request.generates_nothing):
        raise InvalidRequest(
            f"the prompt has {num_prompt} tokens and the request may have {total} in all, which leaves none to "
            f"generate; shorten the prompt to at most {total - 1} tokens or raise the context limit"
        )
    if not pool.fits_ever(total, storage, state.keep):
        raise CapacityError(
            f"the prompt has {num_prompt} tokens and with {total - num_prompt} new ones makes {total}; at most "
            f"{pool.largest_fit(storage)} fit the KV cache; shorten the prompt, lower max_tokens, or give the KV "
            "cache more blocks"
        )
    promised = total if reserve or storage is StorageKind.DENSE else min(total, state.num_tokens)
    return WaitingRequest(
        state=state,
        storage=storage,
        promised=promised,
        blocks=pool.blocks_needed(promised, storage, state.keep),
        spare=pool.may_outgrow(storage, promised, total, state.keep),
        domain=domain,
        tokens=None if domain is None else encode_tokens(state.tokens(0, state.num_tokens)),
        arrival=arrival,
        waited=waited,
        reserve=reserve,
    )
