"""Rows of narrow codecs are written and read by the compiled kernels with the bits of torch's."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.codec_cases import (
    DIMS,
    ENCODED,
    assert_kernels_read_what_torch_reads,
    assert_kernels_store_what_torch_stores,
)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ENCODED)
def test_rows_are_encoded_with_the_bits_of_torch(name, dim):
    assert_kernels_store_what_torch_stores(name, dim)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ENCODED)
def test_rows_are_decoded_with_the_bits_of_torch(name, dim):
    assert_kernels_read_what_torch_reads(name, dim)
