"""How exact attention on a GPU is cut, for who plans its memory: kept apart from kernels, which need Triton."""

EXACT_PART = 256  # columns of a part, at absolute multiples
MOST_PARTIAL_BYTES = 128 << 20  # of partial results at a time, unless one query tile has more
