"""The ledger against what `octavo generate` really takes on real checkpoints: never below, at most a quarter above."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import weights_path

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc of a process"),
]
SETTINGS = ("--max-context", "1024", "--threads", "2")
OUTSIDE_THE_FILE_CACHE = ("RssAnon", "RssShmem")
MIB = 1 << 20


def peak_of(*command: str) -> tuple[int, int]:
    """Peak bytes of a process outside the file cache, and in all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    peak = resident = 0
    with subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if "RssAnon" in fields:  # not of a process that has ended
                peak = max(peak, sum(int(fields[name].split()[0]) * 1024 for name in OUTSIDE_THE_FILE_CACHE))
                resident = max(resident, int(fields["VmHWM"].split()[0]) * 1024)
            time.sleep(0.002)
    assert process.returncode == 0
    return peak, resident


@pytest.mark.parametrize(
    "alias",
    ["smollm2", pytest.param("gemma3", marks=pytest.mark.nightly), pytest.param("qwen05", marks=pytest.mark.nightly)],
)
def test_the_ledger_covers_what_generate_takes_and_not_much_more(alias, tmp_path):
    model = str(weights_path(alias))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("the " * 950)
    bare, bare_resident = peak_of("-c", "import torch")
    inspect = subprocess.run(
        [sys.executable, "-m", "octavo", "inspect", model, "--json", *SETTINGS], capture_output=True, check=True
    )
    memory = json.loads(inspect.stdout)["memory"]
    found, resident = peak_of("-m", "octavo", "generate", "-m", model, "--raw", "-f", str(prompt), "-n", "8", *SETTINGS)
    packing = memory["weight_bytes"] + memory["runtime_bytes"] + memory["loading_bytes"]
    said, taken = max(packing, memory["total_bytes"]), found - bare
    in_file_cache = resident - bare_resident - taken
    print(f"{alias}: ledger {said / MIB:.0f}, taken {taken / MIB:.0f}, and {in_file_cache / MIB:.0f} MiB of file cache")
    print({name: round(value / MIB, 1) for name, value in memory.items() if name.endswith("_bytes")})
    assert taken <= said <= 1.25 * taken
