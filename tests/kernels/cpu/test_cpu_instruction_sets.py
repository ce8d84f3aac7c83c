"""The same sources compiled for other processors that this one can stand in for: right, and row by row alike."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from octavo.kernels import rows
from octavo.kernels.cpu import build, library
from octavo.kernels.cpu.linear import PackedAffine
from tests.kernels.cpu.attention_cases import Heads, Storage, assert_is_the_definition, attend
from tests.kernels.cpu.block_cases import NUMBERS, assert_packs_as_its_codes_do, draw_tensor
from tests.kernels.cpu.codec_cases import (
    DIMS,
    ENCODED,
    assert_kernels_read_what_torch_reads,
    assert_kernels_store_what_torch_stores,
)
from tests.kernels.cpu.linear_cases import (
    OFFSETS,
    assert_is_the_product,
    assert_looks_up_rows,
    assert_rows_do_not_depend_on_their_number,
    draw_matrix,
    draw_rows,
)

# What the library calls itself: the processor's flags that it takes, and the compiler's.
X86 = {
    "avx512-vnni": (("avx512_vnni", "avx512bw"), ("-mavx512f", "-mavx512bw", "-mavx512vnni")),
    "avx512": (("avx512bw",), ("-mavx512f", "-mavx512bw")),
    "avx512 without bw": (("avx512f",), ("-mavx512f",)),
    "avx2 + avx-vnni": (("avx_vnni", "f16c", "fma"), ("-mavx2", "-mfma", "-mf16c", "-mavxvnni")),
    "avx2": (("avx2", "f16c", "fma"), ("-mavx2", "-mfma", "-mf16c")),
    "avx2 without fma": (("avx2",), ("-mavx2",)),
    "portable": ((), ()),
}
OTHER = {"neon": ((), ())}
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
# To compile for one set takes longer than its tests. These two are sets of hardly any processor there is.
RARE = ("avx512 without bw", "avx2 without fma")
SETS = [pytest.param(each, marks=pytest.mark.nightly if each in RARE else ()) for each in (X86 if IS_X86 else OTHER)]


@pytest.fixture(scope="module", params=SETS)
def instructions(request, tmp_path_factory):
    """Every kernel of this module comes from a library compiled for these instructions."""
    needs, flags = (X86 if IS_X86 else OTHER)[request.param]
    cpuinfo = Path("/proc/cpuinfo")
    has = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    missing = [flag for flag in needs if flag not in has]
    if missing:
        pytest.skip(f"this processor has no {', '.join(missing)}")
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    try:
        complaint = build.compile_sources(build.find_compiler(), (*flags, "-O1"), path)
    except build.BuildError as error:
        pytest.skip(str(error))
    if complaint is not None and "unrecognized" in complaint:
        pytest.skip(f"the compiler does not know these instructions: {complaint}")
    assert complaint is None
    loaded = library.Library(library.bind(path), "")
    assert loaded.instructions == request.param.split(" without")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "load", lambda: loaded)
        yield request.param


@pytest.mark.usefixtures("instructions")
class TestInstructionSets:
    @pytest.mark.parametrize("group", [16, 32])
    @pytest.mark.parametrize("bits", [4, 5, 6, 8])
    def test_products(self, bits, group):
        for offset in OFFSETS:
            for num_rows, columns in ((37, 96), (16, 576)):
                matrix = draw_matrix(num_rows, columns, bits, group, offset)
                packed, x = PackedAffine([matrix]), draw_rows(36, columns)
                assert_is_the_product(packed.multiply(x), x, [matrix])
                assert_rows_do_not_depend_on_their_number(packed, x, [1, 2, 3, 4, 5, 15, 16, 17, 33])
                ids = torch.tensor([num_rows - 1, 0, 7])
                assert_looks_up_rows(packed, matrix, ids)

    def test_largest_codes_and_activations_do_not_overflow(self):
        for bits in (4, 5, 8):
            matrix = draw_matrix(16, 64, bits, 32, "plain")
            matrix.codes.fill_(2**bits - 1)
            for sign in (1.0, -1.0):
                x = torch.full((17, 64), sign)
                assert_is_the_product(PackedAffine([matrix]).multiply(x), x, [matrix])

    def test_poison_stays_in_its_row(self):
        packed, x = PackedAffine([draw_matrix(18, 96, 4, 32, "minimum")]), draw_rows(20, 96)
        clean = packed.multiply(x)
        for poison in (float("nan"), float("inf")):
            x[1, 40] = poison
            y = packed.multiply(x)
            assert not y[1].isfinite().any()
            assert torch.equal(y[2:], clean[2:]) and torch.equal(y[0], clean[0])

    @pytest.mark.parametrize("name", list(NUMBERS))
    def test_blocks_of_files(self, name):
        for num_rows in (16, 21):
            assert_packs_as_its_codes_do(draw_tensor(name, num_rows, 2))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("kind", ["dense", "blocks16"])
    def test_attention(self, kind, dtype):
        for heads in (
            Heads(9, 3, 64, 64),
            Heads(8, 1, 80, 48, 50),
            Heads(4, 2, 16, 16, None, 20.0),
            Heads(32, 1, 32, 32, 9),
        ):
            for start, num_tokens in ((0, 50), (130, 1), (63, 3), (700, 2)):
                assert_is_the_definition(heads, start, num_tokens, kind=kind, dtype=dtype)

    def test_attention_with_sinks(self):
        for heads in (Heads(9, 3, 64, 64), Heads(8, 1, 80, 48, 50), Heads(32, 1, 32, 32, 9)):
            for start, num_tokens in ((0, 50), (130, 1), (63, 3), (700, 2)):
                assert_is_the_definition(heads, start, num_tokens, sinks=torch.linspace(-4, 4, heads.num_q))

    def test_attention_in_chunks(self):
        for heads in (Heads(9, 3, 80, 80, 70), Heads(6, 2, 64, 48)):
            q, k, v = heads.draw(610)
            whole = attend(heads, q, k, v, dtype=torch.float16)
            kernel, storage = heads.kernel(), Storage(heads, [610], "blocks32", torch.float16)
            start = 0
            for size in (1, 2, 60, 1, 3, 64, 19, 106, 1, 2, 251, 3, 97):
                part = slice(start, start + size)
                storage.store(kernel, k[part], v[part], start)
                for threads in (1, 3):
                    library.set_threads(threads)
                    got = storage.attend(kernel, q[part], [storage.place(0, size, start)])
                    assert torch.equal(got, whole[part])
                start += size

    def test_stored_rows_are_rounded_as_torch_rounds(self):
        heads = Heads(1, 1, 16, 16)
        every_half = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
        between = every_half[every_half.isfinite()].sort().values
        between = (between[1:] + between[:-1]) / 2  # ties
        values = torch.cat((every_half, between, between * 1.0001, torch.tensor([65519.9, 65520.0, 1e30])))
        values = values[: len(values) // 16 * 16].view(-1, 1, 16)
        for dtype in (torch.float16, torch.bfloat16):
            storage = Storage(heads, [len(values)], dtype=dtype)
            storage.store(heads.kernel(), values, values)
            stored, expected = storage.rows[0].data[5:], values.to(dtype)
            assert torch.equal(stored.isnan(), expected.isnan())
            assert torch.equal(stored.nan_to_num(7.0), expected.nan_to_num(7.0))

    @pytest.mark.parametrize("name", ENCODED)
    def test_narrow_codecs(self, name):
        for dim in DIMS:
            assert_kernels_store_what_torch_stores(name, dim)
            assert_kernels_read_what_torch_reads(name, dim)

    @pytest.mark.parametrize("width", [1, 17, 576])
    def test_rows(self, width):
        x, weight = draw_rows(20, 2 * width) * 3, draw_rows(1, 2 * width, seed=2)[0]
        x[0] *= 1e4
        gates, values = x.double().chunk(2, -1)
        norm = x.double() * weight.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
        cases = [
            (lambda part: rows.rms_norm(part, weight, 1e-6), norm),
            (lambda part: rows.gate(part, "silu"), F.silu(gates) * values),
            (lambda part: rows.gate(part, "gelu_tanh"), F.gelu(gates, approximate="tanh") * values),
        ]
        for function, expected in cases:
            got = function(x)
            for row in range(20):
                assert torch.equal(function(x[row : row + 1])[0], got[row])
                error = (got[row].double() - expected[row]).abs().max()
                assert error <= 2e-6 * expected[row].abs().max() + 1e-20

    @pytest.mark.parametrize("dim", [6, 64])
    def test_rotation(self, dim):
        qkv, angle = draw_rows(7 * 5, dim).view(7, 5, dim), draw_rows(7, dim // 2) * 9
        cos, sin = torch.cat((angle.cos(),) * 2, -1), torch.cat((-angle.sin(), angle.sin()), -1)
        expected = rows.rotate(qkv.double(), cos.double(), sin.double())
        q, k, v = rows.rotate_heads(qkv.clone(), 3, 1, cos, sin)
        assert (torch.cat((q, k), 1) - expected[:, :4]).abs().max() < 1e-6
        assert torch.equal(v, qkv[:, 4:])
        one = rows.rotate_heads(qkv[4:5].clone(), 3, 1, cos[4:5], sin[4:5])
        assert torch.equal(one[0][0], q[4]) and torch.equal(one[1][0], k[4])
