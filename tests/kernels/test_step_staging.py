"""A step's values on their way to a device: one copy, the same places step after step, none lost for want of room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.kernels.step_staging import StepStaging


def put(staging, *values):
    staging.begin()
    views = [staging.put(np.array(each, dtype=dtype)) for each, dtype in values]
    staging.send()
    return views


def test_values_of_both_dtypes_arrive():
    a, b = put(StepStaging(torch.device("cpu")), ([1, -2, 3], np.int64), ([5, 6], np.int32))
    assert (a.tolist(), b.tolist()) == ([1, -2, 3], [5, 6])
    assert (a.dtype, b.dtype) == (torch.int64, torch.int32)


def test_nothing_arrives_before_it_is_sent():
    staging = StepStaging(torch.device("cpu"))
    (view,) = put(staging, ([1], np.int64))
    staging.begin()
    staging.put(np.array([2]))
    assert view.item() == 1
    staging.send()
    assert view.item() == 2


def test_values_of_equal_sizes_lie_in_equal_places_that_kernels_take_for_aligned():
    staging = StepStaging(torch.device("cpu"))
    first = put(staging, ([1] * 3, np.int32), ([2], np.int64))
    again = put(staging, ([7] * 3, np.int32), ([8], np.int64))
    assert [view.data_ptr() for view in first] == [view.data_ptr() for view in again]
    assert all((view.data_ptr() - first[0].data_ptr()) % 16 == 0 for view in first)
    assert first[0].tolist() == [7] * 3  # a view


def test_what_has_no_room_arrives_all_the_same_says_so_and_has_room_in_the_next_step():
    staging = StepStaging(torch.device("cpu"))
    put(staging, ([1], np.int64))
    long = np.arange(200_000)
    (small, large) = put(staging, ([1], np.int64), (long, np.int64))
    assert staging.spilled
    assert small.tolist() == [1] and np.array_equal(large.numpy(), long)
    (small, large) = put(staging, ([2], np.int64), (long, np.int64))
    assert not staging.spilled
    assert small.tolist() == [2] and np.array_equal(large.numpy(), long)


def test_bytes_are_counted_as_they_are_sent():
    staging = StepStaging(torch.device("cpu"))
    put(staging, ([1, 2], np.int64))
    assert staging.uploaded_bytes == 16
    put(staging, ([1, 2], np.int64), ([3], np.int32))
    assert staging.uploaded_bytes == 16 + 16 + 16  # in steps of what kernels take for aligned


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_values_are_not_overwritten_before_their_copy_is_over():
    staging = StepStaging(torch.device("cuda"))
    seen = []
    busy = torch.randn(4096, 4096, device="cuda")
    for i in range(50):
        torch.mm(busy, busy)  # the host runs ahead
        (view,) = put(staging, ([i] * 1000, np.int64))
        seen.append(view.clone())
    assert all((each == i).all() for i, each in enumerate(seen))
