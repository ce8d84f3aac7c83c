"""Codes of K and V as operands of matrix instructions, without leaving the lane that loaded them. Written in Gluon.

K stays whole numbers: queries become 16-bit ones in two halves, and a product with the 32 codes of a group is scaled
after it was formed. V becomes float16 values. What a lane has of stored rows, 8 of them at a time:

    K    row lane / 4: 8 bytes of every group, from byte 8 (lane % 4) on; by way of shared memory
    V    rows 2 (lane % 4) and the next one: words from VECTOR (lane / 4) on
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from octavo.kernels.triton.words import Q4_ASM, Q4_REGISTERS, Q8_ASM, Q8_REGISTERS

SUB = gl.constexpr(16)  # columns that lie in one block whatever its size
MMA = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
QUERY = gl.constexpr(gl.DotOperandLayout(0, MMA, 4))
KEY = gl.constexpr(gl.DotOperandLayout(1, MMA, 4))
VALUE = gl.constexpr(gl.DotOperandLayout(0, MMA, 2))
WEIGHT = gl.constexpr(gl.DotOperandLayout(1, MMA, 2))
# Scores [8 query rows, 8 columns]: the upper half of an accumulator, and, transposed, half of a WEIGHT.
KEY_LANES = gl.constexpr([[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]])
SCORE = gl.constexpr(gl.DistributedLinearLayout([[0, 1]], KEY_LANES.value, [], [], [8, 8]))
VALUE_SCALES = gl.constexpr(gl.DistributedLinearLayout([], [[1, 0], [2, 0], [0, 1], [0, 2], [0, 4]], [], [], [4, 8]))


@gluon.constexpr_function
def num_words(dim, codec):
    """32-bit words of a head's codes."""
    return dim // 4 if codec == 1 else dim // 8


@gluon.constexpr_function
def vector(dim, codec):
    """Words of V that a lane loads at once."""
    return min(4, num_words(dim, codec) // 8)


@gluon.constexpr_function
def num_vectors(dim, codec):
    """Vectors of V that a lane loads of a row."""
    return num_words(dim, codec) // (8 * vector(dim, codec))


@gluon.constexpr_function
def num_pieces(dim, codec):
    """Matrix operands of V: one for each vector, and for each half of a byte."""
    return num_vectors(dim, codec) * codec


@gluon.constexpr_function
def piece_rows(dim, codec):
    """Elements of a head in one of them."""
    return 32 * vector(dim, codec)


@gluon.constexpr_function
def bits(first, last):
    """The powers of two from `first` on, below `last`."""
    return [first << i for i in range((last // first).bit_length() - 1)] if last > first else []


@gluon.constexpr_function
def copied_words(words):
    """[16, words]: 16 bytes a lane."""
    places = [[0, bit] for bit in bits(4, words)] + [[row, 0] for row in (1, 2, 4, 8)]
    lanes = (places + [[0, 0]] * 5)[:5]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], *places[5:]], lanes, [], [], [16, words])


@gluon.constexpr_function
def copied_scales(pairs):
    """[16, pairs]: a lane has those of a row."""
    registers = [[0, bit] for bit in bits(1, pairs)]
    return gl.DistributedLinearLayout(registers, [[1, 0], [2, 0], [4, 0], [8, 0], [0, 0]], [], [], [16, pairs])


@gluon.constexpr_function
def shared_words(words):
    """How rows of K lie in shared memory: 16 bytes of neighbouring rows in other banks."""
    return gl.SwizzledSharedLayout(4, max(1, 32 // words), min(8, words // 4), [1, 0])


@gluon.constexpr_function
def key_words(words):
    """[8, words]."""
    groups = [[0, bit] for bit in bits(8, words)]
    return gl.DistributedLinearLayout([[0, 1], *groups], KEY_LANES.value, [], [], [8, words])


@gluon.constexpr_function
def key_scales(pairs):
    """[8, pairs]: a lane has those of the rows that are its columns in SCORE."""
    registers = [[0, bit] for bit in bits(1, pairs)]
    return gl.DistributedLinearLayout(
        [*registers, [1, 0]], [[2, 0], [4, 0], [0, 0], [0, 0], [0, 0]], [], [], [8, pairs]
    )


@gluon.constexpr_function
def value_words(vector):
    """[4 pairs of rows, words]."""
    registers = [[0, 1 << i] for i in range(vector.bit_length() - 1)]
    lanes = [[1, 0], [2, 0], [0, vector], [0, 2 * vector], [0, 4 * vector]]
    return gl.DistributedLinearLayout(registers, lanes, [], [], [4, 8 * vector])


@gluon.constexpr_function
def paired_words(vector):
    """[4 pairs of rows, words, 2]: both rows of a pair in neighbouring registers."""
    registers = [[0, 0, 1], *([0, 1 << i, 0] for i in range(vector.bit_length() - 1))]
    lanes = [[1, 0, 0], [2, 0, 0], [0, vector, 0], [0, 2 * vector, 0], [0, 4 * vector, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [], [], [4, 8 * vector, 2])


@gluon.jit
def prepare_queries(row_ptrs, real, DIM: gl.constexpr, CODEC: gl.constexpr):
    """Queries as QUERY [16, 32] int8 of each group, upper bytes above lower ones, and what a unit of them is [8]."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0])
    k = gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    # A lane's 8 bytes of a group are two words, which lie 16 apart in KEY.
    ptrs = (
        gl.convert_layout(row_ptrs, gl.SliceLayout(1, layout))[:, None]
        + (k // 4 % 4 * 8 + k // 16 * 4 + k % 4)[None, :]
    )
    mask = gl.convert_layout(real, gl.SliceLayout(1, layout))[:, None] & (k >= 0)[None, :]
    x = ()
    largest = gl.full([8], 1e-30, gl.float32, gl.SliceLayout(1, layout))
    for group in gl.static_range(DIM // 32):
        x = x + (gl.load(ptrs + group * 32, mask=mask, other=0.0).to(gl.float32),)
        largest = gl.maximum(largest, gl.max(gl.abs(x[group]), 1))
    # 32,512 is 127 * 256: neither byte overflows.
    unit = largest / 32512
    out = ()
    for group in gl.static_range(DIM // 32):
        whole = x[group] / unit[:, None]
        whole = (whole + gl.where(whole < 0, -0.5, 0.5)).to(gl.int32)
        upper = (whole + 128) >> 8
        both = gl.join(upper.to(gl.int8), (whole - (upper << 8)).to(gl.int8))
        out = out + (gl.convert_layout(gl.reshape(gl.permute(both, [2, 0, 1]), [16, 32]), QUERY),)
    # Codes of 4 bits are multiplied in the upper half of a byte.
    unit = unit if CODEC == 1 else unit / 16
    return out, gl.convert_layout(unit, gl.SliceLayout(1, SCORE))


@gluon.jit
def copy_keys(ptr, scale_ptr, rows, head, words, scales, HEADS: gl.constexpr, DIM: gl.constexpr, CODEC: gl.constexpr):
    """Begin to copy words and pairs of scales of every 16 rows to shared memory [rows, words] and [rows, pairs]."""
    WORDS: gl.constexpr = num_words(DIM, CODEC)
    PAIRS: gl.constexpr = DIM // 64
    layout: gl.constexpr = copied_words(WORDS)
    scale_layout: gl.constexpr = copied_scales(PAIRS)
    t = gl.arange(0, SUB, layout=gl.SliceLayout(1, layout)).to(gl.int64)[:, None]
    w = gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).to(gl.int64)[None, :]
    scale_t = gl.arange(0, SUB, layout=gl.SliceLayout(1, scale_layout))[:, None]
    pair = gl.arange(0, PAIRS, layout=gl.SliceLayout(0, scale_layout))[None, :]
    for i in gl.static_range(len(rows)):
        first = rows[i][0] * HEADS + head
        ptrs = ptr + first * WORDS + (t * (HEADS * WORDS) + w)
        scale_ptrs = scale_ptr + first * PAIRS + (scale_t * (HEADS * PAIRS) + pair)
        async_copy.async_copy_global_to_shared(words.slice(i * SUB, SUB), ptrs)
        async_copy.async_copy_global_to_shared(scales.slice(i * SUB, SUB), scale_ptrs)
    async_copy.commit_group()


@gluon.jit
def load_values(ptr, scale_ptr, rows, head, HEADS: gl.constexpr, DIM: gl.constexpr, CODEC: gl.constexpr):
    """For every 16 rows: words [4, 8 * VECTOR] by 8 rows, vector and parity, then their scales [4, 8], lower codes'
    before upper ones'."""
    WORDS: gl.constexpr = num_words(DIM, CODEC)
    VECTOR: gl.constexpr = vector(DIM, CODEC)
    GROUPS: gl.constexpr = DIM // 32
    layout: gl.constexpr = value_words(VECTOR)
    t = gl.arange(0, 4, layout=gl.SliceLayout(1, layout))[:, None]
    w = gl.arange(0, 8 * VECTOR, layout=gl.SliceLayout(0, layout))[None, :]
    pair = gl.arange(0, 4, layout=gl.SliceLayout(1, VALUE_SCALES))[:, None]
    group = gl.arange(0, 8, layout=gl.SliceLayout(0, VALUE_SCALES))[None, :] * VECTOR // 8
    out = ()
    for i in gl.static_range(len(rows)):
        ptrs = ptr + (rows[i][0] * HEADS + head) * WORDS + (t * (2 * HEADS * WORDS) + w)
        scale_ptrs = scale_ptr + (rows[i][0] * HEADS + head) * GROUPS + (pair * (2 * HEADS * GROUPS) + group)
        words = ()
        scales = ()
        for half in gl.static_range(2):
            for j in gl.static_range(num_vectors(DIM, CODEC)):
                for parity in gl.static_range(2):
                    row = half * 8 + parity
                    words = words + (gl.load(ptrs + (row * HEADS * WORDS + j * 8 * VECTOR)),)
                    for upper in gl.static_range(CODEC):
                        scales = scales + (
                            gl.load(scale_ptrs + (row * HEADS * GROUPS + j * VECTOR + upper * GROUPS // 2)),
                        )
        out = out + ((words, scales),)
    return out


@gluon.jit
def as_key(words):
    """Words [8, 8] of one group as KEY [32, 8] int8."""
    b0 = words.to(gl.int8)
    b1 = (words >> 8).to(gl.int8)
    b2 = (words >> 16).to(gl.int8)
    b3 = (words >> 24).to(gl.int8)
    x = gl.join(gl.join(b0, b2), gl.join(b1, b3))  # row, word, upper, odd
    x = gl.reshape(x, [8, 4, 2, 2, 2])  # row, lane, word, upper, odd
    x = gl.reshape(gl.permute(x, [2, 1, 3, 4, 0]), [32, 8])
    return gl.convert_layout(x, KEY, assert_trivial=True)


@gluon.jit
def product(q, words):
    """q · k [8, 8] of one group, in units of both."""
    both = mma_v2(q, as_key(words), gl.zeros([16, 8], gl.int32, MMA))
    upper, lower = gl.split(gl.permute(gl.reshape(both, [2, 8, 8]), [1, 2, 0]))
    return gl.convert_layout((upper << 8) + lower, SCORE, assert_trivial=True).to(gl.float32)


PAIR_ASM = gl.constexpr("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }")
UPPER_ASM = gl.constexpr("lop3.b32 $0, $1, 0xf0f0f0f0, 0x80808080, 0x6A;")  # (x & ...) ^ ...
TWO = gl.constexpr((gl.float32,) * 2)
FOUR = gl.constexpr((gl.float16,) * 4)
EIGHT = gl.constexpr((gl.float16,) * 8)


@gluon.jit
def pieces(x, COUNT: gl.constexpr):
    """[8, COUNT * N] as COUNT tensors [8, N]."""
    if COUNT == 1:
        return (x,)
    else:
        a, b = gl.split(gl.permute(gl.reshape(x, [8, 2, x.shape[1] // 2]), [0, 2, 1]))
        return pieces(a, COUNT // 2) + pieces(b, COUNT // 2)


@gluon.jit
def load_keys(words, scales, SUBS: gl.constexpr, DIM: gl.constexpr, CODEC: gl.constexpr):
    """From shared memory, for every 8 rows: words [8, 8] by 8 of them, and pairs of scales [8, 1]."""
    WORDS: gl.constexpr = num_words(DIM, CODEC)
    PAIRS: gl.constexpr = DIM // 64
    out = ()
    for i in gl.static_range(2 * SUBS):
        codes = pieces(words.slice(i * 8, 8).load(key_words(WORDS)), WORDS // 8)
        out = out + ((codes, pieces(scales.slice(i * 8, 8).load(key_scales(PAIRS)), PAIRS)),)
    return out


@gluon.jit
def scores(q, keys, DIM: gl.constexpr, CODEC: gl.constexpr):
    """q · k [8, 8] float32 of 8 rows in units of q."""
    PAIRS: gl.constexpr = DIM // 64
    COUNT: gl.constexpr = num_words(DIM, CODEC) // 8
    codes, pairs = keys
    s = gl.zeros([8, 8], gl.float32, SCORE)
    for j in gl.static_range(PAIRS):
        low, high = gl.inline_asm_elementwise(PAIR_ASM, "=f,=f,r", [gl.reshape(pairs[j], [8])], TWO, True, 1)
        s += product(q[2 * j], group_codes(codes, 2 * j, COUNT, CODEC)) * score_row(low)
        s += product(q[2 * j + 1], group_codes(codes, 2 * j + 1, COUNT, CODEC)) * score_row(high)
    return s


@gluon.jit
def group_codes(words, group: gl.constexpr, COUNT: gl.constexpr, CODEC: gl.constexpr):
    """Words [8, 8] with the signed bytes of one group."""
    x = words[group % COUNT]
    if CODEC == 1:
        return x
    else:
        # In a byte's upper half, with their highest bit turned, codes are 16 times what they stand for.
        if group < COUNT:
            x = x << 4
        return gl.inline_asm_elementwise(UPPER_ASM, "=r,r", [x], gl.int32, True, 1)


@gluon.jit
def score_row(scale):
    return gl.convert_layout(scale, gl.SliceLayout(0, SCORE), assert_trivial=True)[None, :]


@gluon.jit
def as_weights(p0, p1):
    """Softmax weights [8, 8] of two times 8 columns as WEIGHT [16, 8] float16."""
    p = gl.join(p0.to(gl.float16), p1.to(gl.float16))
    return gl.convert_layout(gl.reshape(gl.permute(p, [2, 1, 0]), [SUB, 8]), WEIGHT, assert_trivial=True)


@gluon.jit
def paired_scales(even, odd, VECTOR: gl.constexpr):
    """Scales [4, 8] of even and odd rows as [4, 8 * VECTOR, 2]."""
    x = gl.join(even, odd)
    if VECTOR >= 2:
        x = gl.permute(gl.join(x, x), [0, 1, 3, 2])
    if VECTOR == 4:
        x = gl.permute(gl.join(x, x), [0, 1, 2, 4, 3])
    return gl.convert_layout(gl.reshape(x, [4, 8 * VECTOR, 2]), paired_words(VECTOR), assert_trivial=True)


@gluon.jit
def seen_scale(scale, cols, begin, end, keep, skip):
    """Scales [4, 8], 0 where nobody sees the column: what lies there may be NaN."""
    seen = (cols >= begin) & (cols < end)
    if keep is not None:
        seen &= (cols < keep) | (cols >= keep + skip)
    return gl.where(seen[:, None], scale, 0.0)


@gluon.jit
def values(stored, i: gl.constexpr, column, begin, end, keep, skip, DIM: gl.constexpr, CODEC: gl.constexpr):
    """V of the i-th 16 columns as VALUE [piece rows, 16] float16, one for each piece."""
    VECTOR: gl.constexpr = vector(DIM, CODEC)
    COUNT: gl.constexpr = num_vectors(DIM, CODEC)
    words, scales = stored[i]
    low = ()
    high = ()
    for j in gl.static_range(COUNT):
        cols = column + i * SUB + gl.arange(0, 4, layout=gl.SliceLayout(1, VALUE_SCALES)) * 2
        first = value_bytes(words, scales, 2 * j, cols, begin, end, keep, skip, VECTOR, CODEC)
        second = value_bytes(words, scales, 2 * (COUNT + j), cols + 8, begin, end, keep, skip, VECTOR, CODEC)
        low = low + (as_value(first, second, 0, VECTOR),)
        if CODEC == 2:
            high = high + (as_value(first, second, 4, VECTOR),)
    return low + high


@gluon.jit
def value_bytes(
    words, scales, at: gl.constexpr, cols, begin, end, keep, skip, VECTOR: gl.constexpr, CODEC: gl.constexpr
):
    """Scaled codes of words `at` and `at` + 1, those of columns `cols` and the ones after: by byte, then upper ones."""
    layout: gl.constexpr = paired_words(VECTOR)
    x = gl.convert_layout(gl.join(words[at], words[at + 1]), layout, assert_trivial=True)
    pairs = ()
    for upper in gl.static_range(CODEC):
        even = seen_scale(scales[at * CODEC + upper], cols, begin, end, keep, skip)
        odd = seen_scale(scales[(at + 1) * CODEC + upper], cols + 1, begin, end, keep, skip)
        pairs = pairs + (paired_scales(even, odd, VECTOR),)
    if CODEC == 1:
        return gl.inline_asm_elementwise(Q8_ASM, Q8_REGISTERS, [x, pairs[0]], FOUR, True, 2)
    else:
        return gl.inline_asm_elementwise(Q4_ASM, Q4_REGISTERS, [x, pairs[0], pairs[1]], EIGHT, True, 2)


@gluon.jit
def as_value(first, second, at: gl.constexpr, VECTOR: gl.constexpr):
    """Bytes `at` to `at` + 3 of the words of two times 8 rows, each [4, 8 * VECTOR, 2], as VALUE."""
    halves = ()
    for half in gl.static_range(2):
        v = first if half == 0 else second
        halves = halves + (gl.join(gl.join(v[at], v[at + 2]), gl.join(v[at + 1], v[at + 3])),)
    x = gl.reshape(gl.join(halves[0], halves[1]), [4, 8, VECTOR, 2, 4, 2])  # pair, lane, word, parity, byte, half
    x = gl.reshape(gl.permute(x, [2, 4, 1, 5, 0, 3]), [32 * VECTOR, SUB])
    return gl.convert_layout(x, VALUE, assert_trivial=True)


@gluon.jit
def element_of(m, piece: gl.constexpr, DIM: gl.constexpr, CODEC: gl.constexpr):
    """Elements of a head that rows m of a piece are."""
    VECTOR: gl.constexpr = vector(DIM, CODEC)
    COUNT: gl.constexpr = num_vectors(DIM, CODEC)
    word = piece % COUNT * (8 * VECTOR) + m % 8 * VECTOR + m // 32
    return piece // COUNT * (DIM // 2) + word * 4 + m // 8 % 4
