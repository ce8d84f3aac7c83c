"""The pool of threads: right results whoever calls, however many threads there are, and after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from octavo.kernels.cpu import library, rowwise
from octavo.kernels.cpu.arena import Arena
from octavo.kernels.cpu.linear import PackedAffine
from tests.kernels.cpu.attention_cases import Heads, attend
from tests.kernels.cpu.linear_cases import draw_matrix, draw_rows

CALLERS = 6


def make_work():
    """Functions that return the same bits at every call, of a size that is shared."""
    packed, x = PackedAffine([draw_matrix(700, 288, 4, 32, "minimum")]), draw_rows(9, 288)
    wide, weight = draw_rows(64, 1024), draw_rows(1, 1024)[0]
    heads = Heads(8, 4, 32, 32)
    q, k, v = heads.draw(100)
    return [
        lambda: packed.multiply(x),
        lambda: packed.multiply(x[:1]),
        lambda: packed.multiply(wide[:40, :288].contiguous()),
        lambda: rowwise.rms_norm(wide, weight, 1e-6),
        lambda: rowwise.gate(wide, gelu=True),
        lambda: attend(heads, q, k, v),
    ]


def test_many_threads_may_call_kernels_at_once_while_the_number_of_workers_changes():
    work = make_work()
    library.set_threads(1)
    expected = [function() for function in work]
    done = threading.Event()

    def resize():
        while not done.is_set():
            for threads in (1, 4, 2, 0, 3, -1):
                library.set_threads(threads)

    def call(caller):
        for i in range(60):
            which = (caller + i) % len(work)
            if not torch.equal(work[which](), expected[which]):
                return f"caller {caller}, call {i}, function {which}"
        return None

    resizer = threading.Thread(target=resize)
    resizer.start()
    try:
        with ThreadPoolExecutor(CALLERS) as callers:
            assert [fault for fault in callers.map(call, range(CALLERS)) if fault] == []
    finally:
        done.set()
        resizer.join()


def test_more_threads_than_anybody_has_are_cut_to_what_the_pool_holds():
    functions = library.load().functions
    assert functions.octavo_set_threads(1) == 1
    assert functions.octavo_set_threads(-3) == 1
    assert functions.octavo_set_threads(3) == 3
    assert 1 <= functions.octavo_set_threads(100_000) <= 256
    work = make_work()
    many = [function() for function in work]
    library.set_threads(1)
    for function, result in zip(work, many, strict=True):
        assert torch.equal(function(), result)


def test_workers_are_asleep_soon_after_a_job():
    library.set_threads(3)
    for function in make_work():
        function()
    threading.Event().wait(0.1)
    before = os.times()
    threading.Event().wait(0.3)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.2


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say how much memory is held")
def test_memory_that_a_thread_keeps_for_kernels_goes_with_the_thread():
    packed, x = PackedAffine([draw_matrix(16, 1536, 4, 32, "plain")]), draw_rows(2048, 1536)

    def held():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def multiply_in_a_thread():
        thread = threading.Thread(target=packed.multiply, args=(x,))
        thread.start()
        thread.join()

    for _ in range(20):  # until the allocator has what it keeps for itself
        multiply_in_a_thread()
    before = held()
    for _ in range(30):
        multiply_in_a_thread()
    assert held() - before < 100e6  # each has kept 8 MB


SMALL_STACK = """
import threading
from tests.kernels.cpu.test_cpu_pool import make_work

work = make_work()
threading.stack_size(128 * 1024)
for function in work:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
print("right")
"""


def test_a_thread_with_a_small_stack_may_call_kernels():
    done = subprocess.run([sys.executable, "-c", SMALL_STACK], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


FORKS = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork beside threads
import torch
torch.set_num_threads(1)
from octavo.kernels.cpu import library
from tests.kernels.cpu.test_cpu_pool import make_work

work = make_work()
expected = [function() for function in work]
library.set_threads(3)

def right():
    return all(torch.equal(function(), result) for function, result in zip(work, expected))

assert right()
done = threading.Event()

def keep_busy():
    while not done.is_set():
        work[0]()

busy = threading.Thread(target=keep_busy)
if "busy" in sys.argv:
    busy.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        good = right()  # alone
        library.set_threads(2)
        good = good and right() and right()
        grandchild = os.fork()
        if grandchild == 0:
            signal.alarm(30)
            os._exit(0 if right() else 1)
        os._exit(0 if good and os.waitpid(grandchild, 0)[1] == 0 else 1)
    assert right()
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
done.set()
if "busy" in sys.argv:
    busy.join()
assert right()
print("right")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("company", ["idle", "busy"])
def test_kernels_work_in_a_forked_child_its_child_and_its_parent(company):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, company], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


def test_pieces_of_an_arena_are_aligned_and_apart():
    arena = Arena()
    pieces = [arena.take(size) for size in (1, 63, 64, 65, 20 << 20, 7)]
    spans = sorted((piece.address, piece.address + piece.num_bytes) for piece in pieces)
    assert all(piece.address % 64 == 0 for piece in pieces)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
