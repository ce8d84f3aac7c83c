"""Small copies between the host's pinned memory and a device by a kernel: the same words, in stream order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.engine.read_back import ReadBack
from octavo.kernels.step_staging import StepStaging

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

CUDA = torch.device("cuda")


@pytest.mark.parametrize("words", [0, 1, 2, 511, 512, 513, 3000])
def test_words_arrive_on_either_side(words):
    from octavo.kernels.triton.host_copy import copy_

    source = torch.randint(-(2**62), 2**62, (words,)).pin_memory()
    there, back = torch.full((words + 1,), 7, device=CUDA), torch.full((words + 1,), 7).pin_memory()
    copy_(there[:words], source)
    copy_(back[:words], there[:words])
    torch.cuda.synchronize()
    assert torch.equal(back[:words], source)
    assert there[-1] == back[-1] == 7


def test_what_a_step_sends_is_there_for_the_work_after_it_and_left_alone_while_it_is_under_way():
    staging, found = StepStaging(CUDA), []
    for step in range(40):
        staging.begin()
        view = staging.put(np.arange(step, step + 300))
        small = staging.put(np.array([step], dtype=np.int32))
        staging.send()
        found.append((view.clone(), small.clone()))
    for step, (view, small) in enumerate(found):
        assert view.tolist() == list(range(step, step + 300))
        assert small.tolist() == [step]


def test_more_than_a_kernel_copies_arrives_all_the_same():
    staging = StepStaging(CUDA)
    long = np.arange(60_000)
    staging.begin()
    view = staging.put(long)
    staging.send()
    assert np.array_equal(view.cpu().numpy(), long)


@pytest.mark.parametrize("count", [1, 64, 10_000])
def test_tokens_come_back_as_they_were_when_they_were_asked_for(count):
    back, tokens, started = ReadBack(), torch.arange(count, device=CUDA), []
    for _ in range(3):
        started.append(back.start(tokens))
        tokens += 1
    assert [each.wait() for each in started] == [list(range(i, count + i)) for i in range(3)]
