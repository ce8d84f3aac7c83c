"""Which routes paged rows take on this machine's CPU: those of the compiled kernels, or gather without them."""

from __future__ import annotations

from octavo.kernels.cpu import library


def paged_routes(chunks: int, single_tokens: int) -> dict[str, int]:
    """Counts for so many rows of several tokens, and of one."""
    if library.load().functions is None:
        return {"gather": chunks + single_tokens}
    counts = {"varlen_prefill": chunks, "fused_decode": single_tokens}
    return {route: count for route, count in counts.items() if count}


PAGED_ROUTES = set(paged_routes(1, 1))
