"""Routes that show the K/V cache and the ways attention took, and the one that empties the prefix cache."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from octavo.engine.stats import EngineStats
from octavo.errors import NotReady
from octavo.server.state import ServerState, state_of

router = APIRouter()


class GroupBlocks(BaseModel):
    """Blocks of one group of layers; `total` is the sum of the others."""

    group: int
    total: int
    free: int
    live: int
    cached: int


class PrefixCacheCounts(BaseModel):
    """Since the engine began."""

    hits: int
    misses: int
    hit_tokens: int
    evictions: int
    rejects: int


class CacheStats(BaseModel):
    """`kv_bytes` is the memory set aside; `cached_prompt_tokens` of `prompt_tokens` did not have to be computed."""

    groups: list[GroupBlocks]
    prefix_cache: PrefixCacheCounts
    prompt_tokens: int
    cached_prompt_tokens: int
    preemptions: int
    kv_bytes: int


class Reset(BaseModel):
    """Blocks that are free now and were cached before."""

    freed_blocks: int


class RouteCounts(BaseModel):
    """How often row groups attended by `route`, for `reason`."""

    route: str
    reason: str
    count: int


class Routes(BaseModel):
    """Most frequent first."""

    storage: str
    routes: list[RouteCounts]


@router.get("/v1/cache/stats")
async def cache_stats(request: Request) -> CacheStats:
    """How full the cache is and how often it helped."""
    return cache_stats_of(_stats(state_of(request)))


def cache_stats_of(stats: EngineStats) -> CacheStats:
    """The part of `stats` that is of the cache."""
    prefix = stats.prefix
    return CacheStats(
        groups=[
            GroupBlocks(
                group=index,
                total=blocks.free + blocks.live + blocks.cached,
                free=blocks.free,
                live=blocks.live,
                cached=blocks.cached,
            )
            for index, blocks in enumerate(stats.blocks)
        ],
        prefix_cache=PrefixCacheCounts(
            hits=prefix.hits,
            misses=prefix.misses,
            hit_tokens=prefix.hit_tokens,
            evictions=prefix.evictions,
            rejects=prefix.rejects,
        ),
        prompt_tokens=stats.prompt_tokens,
        cached_prompt_tokens=stats.cached_prompt_tokens,
        preemptions=stats.preemptions,
        kv_bytes=stats.kv_bytes,
    )


@router.post("/v1/cache/reset")
async def reset_cache(request: Request) -> Reset:
    """Forget every prefix that no running request uses. Takes no body."""
    state = state_of(request)
    state.ready_model()
    return Reset(freed_blocks=await state.engine.reset_prefix_cache())


@router.get("/v1/internal/routes")
async def routes(request: Request) -> Routes:
    """The ways attention took, with reasons."""
    state = state_of(request)
    counted = sorted(_stats(state).routes, key=lambda each: -each.count)
    return Routes(
        storage=state.engine.info.storage,
        routes=[RouteCounts(route=each.route, reason=each.reason, count=each.count) for each in counted],
    )


def _stats(state: ServerState) -> EngineStats:
    state.ready_model()
    stats = state.engine.stats
    if stats is None:
        raise NotReady("the engine has counted nothing yet; try again soon")
    return stats
