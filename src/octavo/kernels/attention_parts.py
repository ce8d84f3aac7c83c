"""How attention on a GPU is cut into parts, for who plans its memory: kept apart from kernels, which need Triton."""

EXACT_PART = 256  # columns of a part of exact attention, at absolute multiples
MOST_PARTIAL_BYTES = 128 << 20  # of its partial results at a time, unless one query tile has more

PREFILL_PART = 8192  # columns of a part of a chunk's attention, at absolute multiples
MOST_TILE_TOKENS = 128

MOST_GATHERED_BYTES = 256 << 20  # of several sequences' keys and values that torch attends to at a time
MOST_SCORES = 1 << 25  # float32, that torch holds of a chunk at a time

MOST_PROGRAMS = 2112  # that a step of few tokens is cut into, or, where their sequences' lengths differ much,
RAGGED_CUTS = 8  # as many parts as this for each sequence
