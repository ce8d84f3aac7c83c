"""llama.cpp beside ours: where it is looked for, what its process is asked, and what is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.bench.peer_child import peak_bytes
from octavo.bench.peers import Peer, find_peer
from octavo.errors import EngineFault, InvalidRequest
from tests.cli.conftest import Run

HERE = Path(sys.executable)
GGUF = Path("m.gguf")
LLAMA_CPP = '''
import os, sys, time
__version__ = "0.9"

def llama_print_system_info():
    return b"CPU : AVX = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 | "

class Llama:
    """Takes 1 ms a token; what it is asked goes to a file."""

    def __init__(self, path, **given):
        if path == "broken.gguf":
            raise ValueError("no such model")
        self._block = bytearray(b"x" * (96 << 20))
        self._log = open(os.environ["ASKED"], "a")
        print(path, given["n_threads"], given["n_threads_batch"], given["n_batch"], file=self._log, flush=True)

    def reset(self):
        print("reset", file=self._log, flush=True)

    def eval(self, tokens):
        time.sleep(len(tokens) * 1e-3)
        print(len(tokens), file=self._log, flush=True)
'''
XLLAMACPP = """
from types import SimpleNamespace
__version__ = "7"

def get_system_info():
    return "CPU : AVX2 = 1 | "

def CommonParams():
    return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())

class Server:
    def __init__(self, params):
        self._threads = params.cpuparams.n_threads + params.cpuparams_batch.n_threads

    def handle_completions(self, request):
        assert request["temperature"] == 0 and request["ignore_eos"] and not request["cache_prompt"]
        speed = len(request["prompt"]) * self._threads
        return {"timings": {"prompt_per_second": speed, "predicted_per_second": request["n_predict"]}}
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose modules the peer's process finds before all others."""
    found = tmp_path / "packages"
    found.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(found))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    return found


def lack(packages: Path, name: str) -> None:
    """Have that Python not find the package, whether it is installed or not."""
    (packages / "sitecustomize.py").write_text(f"import sys\nsys.modules[{name!r}] = None\n")


def test_llama_cpp_python_goes_first_and_says_what_it_was_compiled_for(packages: Path) -> None:
    (packages / "llama_cpp.py").write_text(LLAMA_CPP)
    (packages / "xllamacpp.py").write_text(XLLAMACPP)
    peer = find_peer(GGUF, HERE)
    assert peer is not None
    assert peer.as_object() == {
        "package": "llama-cpp-python",
        "version": "0.9",
        "build": "CPU : AVX = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 |",
    }
    assert peer.line == "llama-cpp-python 0.9, compiled for AVX AVX512_VNNI"


def test_its_prompts_are_whole_and_its_tokens_one_by_one(packages: Path, tmp_path: Path) -> None:
    (packages / "llama_cpp.py").write_text(LLAMA_CPP)
    peer = find_peer(GGUF, HERE)
    assert peer is not None
    speed = peer.decode(GGUF, 3, [1, 2, 3], 20, list(range(40)))
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["m.gguf", "3", "3", "512", "reset", "3", *["1"] * 8, "reset", "3", *["1"] * 20, "reset", "40"]
    assert 0 < speed.decode_tps <= 1000 and 0 < speed.prefill_tps <= 1000
    assert 96 << 20 < speed.peak_bytes < 400 << 20
    figures = peer.prefill(GGUF, 3, [[1] * 5, [2] * 7, [3] * 9])
    assert len(figures.tps) == 2 and all(0 < each <= 1000 for each in figures.tps)
    assert figures.peak_bytes > 96 << 20


def test_xllamacpp_is_asked_as_a_server_and_by_its_own_timings(packages: Path) -> None:
    lack(packages, "llama_cpp")
    (packages / "xllamacpp.py").write_text(XLLAMACPP)
    peer = find_peer(GGUF, HERE)
    assert peer is not None and peer.line == "xllamacpp 7, compiled for AVX2"
    speed = peer.decode(GGUF, 2, [1, 2, 3], 20, list(range(40)))
    assert (speed.decode_tps, speed.prefill_tps) == (20, 160)
    assert peer.prefill(GGUF, 2, [[1] * 5, [2] * 7]).tps == [28]


def test_a_peer_that_fails_is_told_with_its_last_words(packages: Path) -> None:
    (packages / "llama_cpp.py").write_text(LLAMA_CPP)
    peer = find_peer(GGUF, HERE)
    assert peer is not None
    with pytest.raises(EngineFault, match=r"^llama\.cpp ended with status 1: ValueError: no such model$"):
        peer.prefill(Path("broken.gguf"), 1, [[1], [2]])


def test_without_a_package_there_is_no_peer_unless_one_was_named(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("llama_cpp", "xllamacpp"):
        monkeypatch.setitem(sys.modules, name, None)
    assert find_peer(GGUF, None) is None
    code = "import sys\nfor name in ('llama_cpp', 'xllamacpp'):\n    sys.modules[name] = None\n"
    (packages / "sitecustomize.py").write_text(code)
    with pytest.raises(InvalidRequest, match=r"has no llama\.cpp; install llama-cpp-python or xllamacpp there"):
        find_peer(GGUF, HERE)


@pytest.mark.parametrize("command", ["decode", "prefill"])
def test_a_python_that_cannot_be_run_is_refused_before_anything_is_measured(
    octavo: Run, gguf: Path, command: str
) -> None:
    done = octavo("bench", command, "-m", gguf, "--prompt-tokens", 8, "--peer-python", "/nowhere/python")
    assert done.status == 2
    assert "--peer-python '/nowhere/python' cannot be run (No such file or directory); name a Python" in done.error


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "ended with '' as its answer"),
        ("echo words", "ended with 'words' as its answer"),
        ("echo 7", "ended with '7' as its answer"),
        ("""echo '{"a": 1}'""", "is no Python"),
        ("exit 3", "ended with status 3: without a word"),
    ],
)
def test_what_is_no_python_is_refused_by_name(tmp_path: Path, script: str, said: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(InvalidRequest, match=f"^--peer-python '{program}' .*{said}.*; name ") as refusal:
        find_peer(GGUF, program)
    assert "\n" not in str(refusal.value)


def test_a_python_of_the_working_directory_goes_before_one_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "in-path"):
        (tmp_path / place).mkdir()
        program = tmp_path / place / "peer"
        program.write_text(f"""#!/bin/sh\necho '{{"package": "p", "version": "{place}", "build": ""}}'\n""")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "in-path"), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path / "here")
    assert find_peer(GGUF, Path("./peer")) == Peer(str(tmp_path / "here" / "peer"), "p", "here", "")
    (tmp_path / "here" / "peer").unlink()
    found = find_peer(GGUF, Path("peer"))
    assert found is not None and found.version == "in-path"


def test_a_peer_reads_gguf_files_alone() -> None:
    assert find_peer(Path("directory"), None) is None
    with pytest.raises(InvalidRequest, match="directory is no GGUF file"):
        find_peer(Path("directory"), HERE)


def test_the_largest_memory_is_this_processes_own_and_not_of_the_one_that_started_it() -> None:
    large = bytearray(b"x" * (200 << 20))
    code = "from octavo.bench.peer_child import peak_bytes; print(peak_bytes())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 5 << 20 < int(done.stdout) < len(large) < peak_bytes()


def test_a_peers_idle_threads_wait_as_ours_do(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spinning, as they do by themselves, they would make it many times slower beside other work."""
    said = "import os\n__version__ = os.environ['GOMP_SPINCOUNT']\nllama_print_system_info = lambda: b''\n"
    (packages / "llama_cpp.py").write_text(said)
    monkeypatch.setenv("GOMP_SPINCOUNT", "2000")
    peer = find_peer(GGUF, HERE)
    assert peer == Peer(sys.executable, "llama-cpp-python", "2000", "")
    assert peer.line.endswith("compiled for no more")
