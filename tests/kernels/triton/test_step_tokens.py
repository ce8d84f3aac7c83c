"""Token ids at both ends of a decode step, by the device's kernels."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from octavo.kernels.greedy import greedy_tokens_by_parts
from octavo.kernels.triton.step_tokens import pick_tokens

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HUGE = float("inf")


def best(logits):
    out = torch.full((len(logits),), 99, dtype=torch.int64, device=DEVICE)
    return greedy_tokens_by_parts(logits.to(DEVICE), out).tolist()


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 380, 1000, 70_001])
def test_the_largest_logit_wins_wherever_it_lies(vocab_size):
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    places = [0, vocab_size - 1, vocab_size // 2, vocab_size // 3]
    logits[range(4), places] = 100.0
    assert best(logits) == places


def test_random_logits_give_what_torch_gives():
    logits = torch.randn(7, 5000, generator=torch.Generator().manual_seed(1))
    assert best(logits) == logits.argmax(1).tolist()


def test_of_equals_the_lowest_id_wins():
    logits = torch.zeros(3, 5000)
    logits[1, [4000, 70, 3999]] = 1.0
    logits[2, [1024, 1023]] = 1.0
    assert best(logits) == [0, 70, 1023]


def test_a_row_that_is_not_sound_gets_an_error_and_the_others_their_token():
    logits = torch.randn(6, 900, generator=torch.Generator().manual_seed(2))
    logits[0, 5] = float("nan")
    logits[1, 899] = HUGE
    logits[2] = -HUGE
    logits[3, :] = -HUGE
    logits[3, 800] = -5.0
    logits[4, 1:] = -HUGE
    assert best(logits)[:5] == [-1, -1, -1, 800, 0]
    assert best(logits)[5] == logits[5].argmax()


def test_a_view_of_wider_rows_is_read_by_its_stride():
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(3))
    assert best(logits[:, :600]) == logits[:, :600].argmax(1).tolist()


def test_rows_go_on_with_what_was_drawn_or_what_is_given():
    def ids(*values):
        return torch.tensor(values, device=DEVICE)

    out = ids(0, 0, 0, 0, 77)
    pick_tokens[(1,)](out, ids(10, 11, 12, 13), ids(-1, 2, 0, 1), ids(50, -1, 52), 4, BLOCK=4)
    assert out.tolist() == [10, 52, 50, 0, 77]
