"""Compiling the kernels: once, into the cache, and where that cannot be, with a reason of one line."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import InvalidRequest
from octavo.kernels.cpu import build, library

REAL = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(REAL is None, reason="no C compiler is installed")


class Cache:
    """A user's cache directory of the test's own, and a compiler that counts its calls and copies what is `ready`."""

    def __init__(self, root: Path, ready: Path) -> None:
        self.home = root / "cache"
        self.kernels = self.home / "octavo" / "kernels"
        self.calls = root / "calls"
        self.compiler = root / "bin" / "counting-cc"
        self.compiler.parent.mkdir()
        self.copying = f'echo "$@" >> {self.calls}; while [ "$1" != -o ]; do shift; done; cp {ready} "$2"'
        self.write(self.copying)

    def write(self, script: str) -> None:
        self.compiler.write_text(f"#!/bin/sh\n{script}\n")
        self.compiler.chmod(0o755)
        os.utime(self.compiler, ns=(1, 1))  # a changed compiler is another one

    @property
    def num_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    @property
    def kept(self) -> list[Path]:
        """All that is in the cache, but the digests of libraries."""
        digests = [library.with_suffix(".sha256") for library in self.libraries]
        return [path for path in self.kernels.iterdir() if path not in digests]

    @property
    def libraries(self) -> list[Path]:
        return sorted(self.kernels.glob("*.so"))


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A library, if one can be compiled."""
    path = tmp_path_factory.mktemp("ready") / "kernels.so"
    if REAL is not None:
        assert build.compile_sources([REAL], ("-O0",), path) is None
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch, ready):
    cache = Cache(tmp_path, ready)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.home))
    monkeypatch.setenv("CC", str(cache.compiler))
    monkeypatch.delenv("OCTAVO_CPU_KERNELS", raising=False)
    return cache


def load():
    """As a fresh process would."""
    return library.load.__wrapped__()


@needs_compiler
def test_kernels_are_compiled_once_into_the_cache_and_then_found_there(cache):
    first = load()
    assert first.functions is not None and first.reason == "" and first.freshly_compiled
    assert cache.num_calls == 1
    assert [path.name.startswith("kernels-") for path in cache.libraries] == [True]
    second = load()
    assert second.functions is not None and not second.freshly_compiled
    assert second.instructions == first.instructions
    assert cache.num_calls == 1
    assert cache.kept == cache.libraries  # no scratch is left


@needs_compiler
def test_another_compiler_makes_another_library(cache):
    load()
    cache.write(f"# another\n{cache.copying}")
    assert load().freshly_compiled
    assert len(cache.libraries) == 2


@needs_compiler
@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", None, b"no library\n" * 100], ids=["empty", "cut", "half", "text"]
)
def test_a_damaged_library_is_compiled_again(cache, content):
    path, _ = build.compiled_library(lambda fresh: cache.kernels / fresh.name)  # not loaded: only damaged ones are
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    again = load()
    assert again.functions is not None and again.freshly_compiled
    assert cache.num_calls == 2
    assert not load().freshly_compiled


@needs_compiler
def test_a_library_without_our_functions_is_compiled_again(cache, tmp_path):
    path, _ = build.compiled_library(lambda fresh: cache.kernels / fresh.name)
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    subprocess.run([REAL, "-shared", "-fPIC", "-o", tmp_path / "other.so", tmp_path / "other.c"], check=True)
    (tmp_path / "other.so").replace(path)
    assert load().functions is not None
    assert cache.num_calls == 2


@needs_compiler
@pytest.mark.parametrize("in_the_way", ["", "octavo", "octavo/kernels"])
def test_where_nothing_can_be_kept_kernels_are_compiled_for_the_process(cache, in_the_way):
    blocked = cache.home / in_the_way
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file where a directory should be")
    for calls in (1, 2):
        got = load()
        assert got.functions is not None and got.freshly_compiled
        assert got.instructions
        assert cache.num_calls == calls


@needs_compiler
def test_a_cache_that_may_be_read_but_not_written_serves_what_it_holds(cache, monkeypatch):
    load()
    cache.kernels.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert not load().freshly_compiled

        def refuse(*args, **kwargs):
            if kwargs.get("dir") is not None:
                raise PermissionError(13, "Permission denied")
            return real(*args, **kwargs)

        real = build.tempfile.TemporaryDirectory  # the superuser may write anywhere
        monkeypatch.setattr(build.tempfile, "TemporaryDirectory", refuse)
        cache.write(f"# another\n{cache.copying}")
        assert load().freshly_compiled
        assert len(cache.libraries) == 1
    finally:
        cache.kernels.chmod(stat.S_IRWXU)


def test_without_a_compiler_the_reason_names_what_was_looked_for(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC")
    got = load()
    assert got.functions is None
    assert got.reason == "no C compiler is installed (looked for cc, gcc, clang)"
    monkeypatch.setenv("CC", "my-cc")
    assert load().reason == "no C compiler is installed (looked for my-cc)"


def test_a_compiler_that_fails_is_named_with_its_first_error(cache):
    cache.write('echo "note: hello" >&2; echo "x.c:3: error: no such thing" >&2; echo "x.c:9: error: b" >&2; exit 1')
    got = load()
    assert got.functions is None
    assert got.reason == f"{cache.compiler} failed: x.c:3: error: no such thing"
    cache.write("exit 7")
    assert load().reason == f"{cache.compiler} failed: status 7"
    cache.write(r"printf 'Fehler: \377\376\n' >&2; exit 1")
    assert load().reason.startswith(f"{cache.compiler} failed: Fehler")
    cache.write("exit 0")  # and no library
    assert load().reason == f"{cache.compiler} failed: status 0"
    assert cache.libraries == []


def test_a_compiler_that_cannot_be_run_or_does_not_end_is_a_reason(cache, monkeypatch):
    cache.compiler.write_text("#!/no/such/shell\n")
    assert "could not be run" in load().reason
    cache.write("exec sleep 30")
    monkeypatch.setattr(build, "_SECONDS", 0.2)
    assert load().reason == f"{cache.compiler} did not finish within 0.2 seconds"


@needs_compiler
def test_a_compiler_that_does_not_know_this_processor_compiles_for_any_of_its_kind(cache):
    cache.write(f'case "$*" in *native*) echo "error: unknown processor" >&2; exit 1;; esac\nexec {REAL} "$@" -O0')
    got = load()
    assert got.functions is not None
    assert got.instructions in ("portable", "neon")


@needs_compiler
def test_the_compiler_may_be_a_command_with_arguments(cache, monkeypatch):
    monkeypatch.setenv("CC", f"env TESTED=1 {cache.compiler}")
    assert load().functions is not None
    assert cache.num_calls == 1
    monkeypatch.setenv("CC", "cc 'unbalanced")
    assert "no command" in load().reason


@needs_compiler
def test_processes_that_compile_at_once_all_get_kernels(cache):
    # Nobody is done before all have begun, or ten seconds are over.
    all_begun = f'[ "$(wc -l < {cache.calls})" -ge 3 ] || sleep 0.1'
    copying = cache.copying.replace("; ", f"; for i in $(seq 100); do {all_begun}; done; ", 1)
    cache.write(copying)
    script = "from octavo.kernels.cpu import library; print(library.load().reason, library.load().instructions)"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert len({out for out, _ in said}) == 1 and said[0][0].strip()
    assert [err for _, err in said] == ["", "", ""]
    assert cache.kept == cache.libraries and len(cache.libraries) == 1
    assert cache.num_calls == 3


def test_the_switch_does_without_kernels_and_refuses_what_it_does_not_know(cache, monkeypatch):
    monkeypatch.setenv("OCTAVO_CPU_KERNELS", "0")
    assert load() == library.Library(None, "OCTAVO_CPU_KERNELS=0")
    assert cache.num_calls == 0
    monkeypatch.setenv("OCTAVO_CPU_KERNELS", "yes")
    with pytest.raises(InvalidRequest, match=r"OCTAVO_CPU_KERNELS is 'yes'; set it to 0 or 1"):
        load()


@needs_compiler
def test_the_switch_set_to_one_is_the_default(cache, monkeypatch):
    monkeypatch.setenv("OCTAVO_CPU_KERNELS", "1")
    assert load().functions is not None
