"""What a process may use: quotas and limits of control groups, threads, memory, device and dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.engine import cgroup, hardware
from octavo.errors import InvalidRequest

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """An empty system: no control groups, 100 GiB of memory, eight CPUs. Returns a function that writes its files."""
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "OWN_GROUPS", tmp_path / "self")
    monkeypatch.setattr(hardware, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(hardware, "_affinity", lambda: 8)

    def write(files: dict[str, str], own: str = "0::/\n", available: int = 100 * GIB) -> None:
        (tmp_path / "self").write_text(own)
        (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemFree: 2 kB\nMemAvailable: {available // 1024} kB\n")
        for name, text in files.items():
            path: Path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    write({})
    return write


@pytest.mark.parametrize(
    ("files", "own", "threads"),
    [
        ({}, "", 8),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 8),
        ({"cpu.max": "400000 100000\n"}, "0::/\n", 4),
        ({"cpu.max": "250000 100000\n"}, "0::/\n", 2),
        ({"cpu.max": "50000 100000\n"}, "0::/\n", 1),
        ({"cpu.max": "2000000 100000\n"}, "0::/\n", 8),
        ({"cpu.max": "max"}, "0::/\n", 8),
        ({"cpu.max": ""}, "0::/\n", 8),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, "0::/a/b\n", 3),
        ({"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, "0::/a/b\n", 2),
        ({"other/cpu.max": "100000 100000"}, "0::/a/b\n", 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "3:cpu,cpuacct:/\n", 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "3:cpu,cpuacct:/\n", 3),
        ({"cpu/x/cpu.cfs_quota_us": "50000\n", "cpu/x/cpu.cfs_period_us": "10000\n"}, "1:cpu:/x\n0::/\n", 5),
    ],
)
def test_threads_are_what_affinity_and_the_tightest_quota_allow(system, files, own, threads):
    system(files, own)
    assert hardware.choose_threads(None) == threads


def test_more_threads_than_cpus_are_obeyed_up_to_four_times_as_many(system):
    system({"cpu.max": "200000 100000"})
    assert hardware.choose_threads(8) == 8
    with pytest.raises(InvalidRequest, match="threads is 9; this process may use 2 CPUs, give at most 8"):
        hardware.choose_threads(9)


@pytest.mark.parametrize(
    ("files", "own", "free"),
    [
        ({}, "", 100),
        ({"memory.max": "max\n", "memory.current": f"{GIB}\n"}, "0::/\n", 100),
        ({"memory.max": f"{10 * GIB}\n", "memory.current": f"{3 * GIB}\n"}, "0::/\n", 7),
        (
            {
                "memory.max": f"{10 * GIB}\n",
                "memory.current": f"{3 * GIB}\n",
                "memory.stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file 7\n",
            },
            "0::/\n",
            9,
        ),
        ({"memory.max": f"{10 * GIB}\n", "memory.current": f"{11 * GIB}\n"}, "0::/\n", 0),
        ({"memory.max": f"{900 * GIB}\n", "memory.current": "0\n"}, "0::/\n", 100),
        ({"memory.max": f"{10 * GIB}\n"}, "0::/\n", 100),
        ({"a/memory.max": f"{10 * GIB}", "a/memory.current": f"{4 * GIB}"}, "0::/a/b\n", 6),
        (
            {
                "memory/x/memory.limit_in_bytes": f"{10 * GIB}\n",
                "memory/x/memory.usage_in_bytes": f"{9 * GIB}\n",
                "memory/x/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            "4:memory:/x\n",
            2,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": f"{GIB}\n",
            },
            "4:memory:/\n",
            100,
        ),
    ],
)
def test_free_memory_is_the_least_of_what_system_and_groups_have_left(system, files, own, free):
    system(files, own)
    assert hardware.available_memory(CPU) == free * GIB


def test_free_memory_is_that_of_the_system_where_groups_leave_more(system):
    system({"memory.max": f"{10 * GIB}", "memory.current": "0"}, available=3 * GIB)
    assert hardware.available_memory(CPU) == 3 * GIB


def test_a_system_without_meminfo_offers_something(system, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "_MEMINFO", tmp_path / "absent")
    assert hardware.available_memory(CPU) > 0


@pytest.mark.parametrize(("has", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_computes_in_bfloat16_where_the_cpu_has_it(monkeypatch, has, chosen):
    monkeypatch.setattr(hardware, "_cpu_has_bfloat16", lambda: has)
    assert hardware.choose_dtype("auto", CPU) is chosen
    assert hardware.choose_dtype("float16", CPU) is torch.float16
    assert hardware.choose_dtype("float32", CPU) is torch.float32


@pytest.mark.parametrize(("has", "chosen"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_computes_in_sixteen_bits_on_a_gpu(monkeypatch, has, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has)
    assert hardware.choose_dtype("auto", torch.device("cuda")) is chosen


def test_auto_takes_a_gpu_and_cuda_without_one_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert hardware.choose_device("auto").type == "cuda"
    assert hardware.choose_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware.choose_device("auto").type == "cpu"
    with pytest.raises(InvalidRequest, match=r"'cuda'.*--device cpu"):
        hardware.choose_device("cuda")


@pytest.mark.parametrize(
    ("setting", "size"),
    [
        ("always madvise [never]\n", 0),
        ("always [madvise] never\n", 2 << 20),
        ("[always] madvise never\n", 2 << 20),
        ("", 0),
    ],
)
def test_large_pages_count_only_where_mappings_get_them(tmp_path, monkeypatch, setting, size):
    (tmp_path / "enabled").write_text(setting)
    monkeypatch.setattr(hardware, "_LARGE_PAGES", tmp_path / "enabled")
    assert hardware.large_page_bytes() == size
