"""Packing straight from the blocks of a file gives what packing decoded codes gives, whatever the encoding."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

from octavo.kernels.cpu.matrices import EncodedMatrix
from octavo.layers.linear.affine_route import AffineRoute
from octavo.models.loaders.mapped_file import forget, map_file
from tests.kernels.cpu.block_cases import ENCODINGS, NUMBERS, assert_packs_as_its_codes_do, draw_tensor

every_encoding = pytest.mark.parametrize("name", list(NUMBERS))


@every_encoding
@pytest.mark.parametrize("rows", [1, 16, 37, 200])
def test_blocks_are_packed_as_their_codes_are(name, rows):
    assert_packs_as_its_codes_do(draw_tensor(name, rows, 3))


@every_encoding
def test_rows_in_another_order_and_a_part_of_the_columns_are_packed_from_where_they_lie(name):
    size = ENCODINGS[name].block_size
    assert_packs_as_its_codes_do(draw_tensor(name, 40, 2, order=True))
    assert_packs_as_its_codes_do(draw_tensor(name, 20, 4).columns(size, 3 * size))
    assert_packs_as_its_codes_do(draw_tensor(name, 40, 2).rows(5, 28))


@every_encoding
@pytest.mark.parametrize("size", [6e4, 1e-6], ids=["large", "tiny"])
def test_the_largest_and_the_smallest_scales_are_kept(name, size):
    tensor = draw_tensor(name, 17, 2, size=size)
    straight = AffineRoute().pack([tensor]).packed
    values = tensor.dequantize()
    looked_up = straight.lookup(torch.arange(17))
    assert torch.allclose(looked_up, values, rtol=0, atol=2**-9 * float(values.abs().max()))


@every_encoding
def test_a_matrix_of_zeros_is_packed_as_zeros(name):
    tensor = draw_tensor(name, 17, 2, size=0.0)
    assert not AffineRoute().pack([tensor]).packed.lookup(torch.arange(17)).any()


def test_shards_of_a_file_take_no_detour():
    matrix = AffineRoute.matrix(draw_tensor("Q5_0", 16, 2))
    assert isinstance(matrix, EncodedMatrix)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is mapped")
def test_a_part_of_a_file_that_was_packed_leaves_the_process_and_can_be_read_again(tmp_path):
    path = tmp_path / "file"
    content = np.random.default_rng(0).integers(0, 256, 64 * mmap.PAGESIZE, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    data = map_file(path)
    part = data[10 * mmap.PAGESIZE + 5 : 50 * mmap.PAGESIZE].reshape(-1, 1)
    assert int(data.sum(dtype=np.int64)) == int(content.sum(dtype=np.int64))
    before = _resident(path)
    forget(part)
    assert before == 64 * mmap.PAGESIZE
    assert _resident(path) <= 24 * mmap.PAGESIZE
    assert np.array_equal(data, content)
    forget(content)  # no file's
    assert content.any()


def _resident(path: Path) -> int:
    """Bytes of the file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(int(entry.split()[1]) * 1024 for entry in lines if entry.startswith("Rss:"))
    raise AssertionError(f"{path} is not mapped")
