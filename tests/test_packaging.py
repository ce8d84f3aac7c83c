"""The package as it is installed and set up: the Makefile's script, metadata, what the public API offers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import octavo

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the Makefile needs a POSIX shell")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A tree with what `make setup` reads, and no environment yet."""
    root = tmp_path / "octavo"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def script(clone: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The clone's set_up.py as a module."""
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    spec = importlib.util.spec_from_file_location("set_up", clone / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "set_up", module)
    spec.loader.exec_module(module)
    return module


def python_stub(directory: Path, body: str) -> str:
    stub = directory / "python-stub"
    stub.write_text(f"#!/bin/sh\n{body}\n")
    stub.chmod(0o755)
    return str(stub)


def make_setup(clone: Path, python: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": python}
    return subprocess.run(
        ["sh", "scripts/setup.sh"], cwd=clone, env=environment, capture_output=True, text=True, check=False
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *fragments: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("octavo: error: ")
    assert done.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in done.stderr


@pytest.mark.parametrize("found", ["2.7", "3.6", "3.9", "3.10"])
def test_an_old_python_is_refused_with_its_version_and_the_limit(clone: Path, tmp_path: Path, found: str) -> None:
    done = make_setup(clone, python_stub(tmp_path, f"echo {found}"))
    assert_one_line(done, f"is Python {found}", "3.11 or newer", "make PYTHON=")
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("found", ["3.11", "3.12", "3.20", "4.0"])
def test_a_new_enough_python_passes_on_to_the_next_check(clone: Path, tmp_path: Path, found: str) -> None:
    stub = python_stub(tmp_path, f'case "$*" in *version_info*) echo {found} ;; *) exit 1 ;; esac')
    assert "no ensurepip" in make_setup(clone, stub).stderr


def test_a_python_that_is_not_there_is_named(clone: Path) -> None:
    assert_one_line(make_setup(clone, "python-of-nowhere"), "there is no python-of-nowhere")


def test_a_python_that_does_not_run_is_named(clone: Path, tmp_path: Path) -> None:
    assert_one_line(make_setup(clone, python_stub(tmp_path, "echo broken >&2; exit 3")), "python-stub does not run")


def test_a_python_without_ensurepip_is_refused_with_the_debian_package(clone: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "ensurepip.py").write_text("raise ImportError('split off by the distribution')")
    stub = python_stub(tmp_path, f'PYTHONPATH={hidden} exec {sys.executable} "$@"')
    assert_one_line(make_setup(clone, stub), "ensurepip", "apt install python3-venv")


def test_make_passes_the_choice_of_python_on(clone: Path, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "generate", f"PYTHON={python_stub(tmp_path, 'echo 3.9')}"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("octavo: error: ")
    assert "is Python 3.9" in done.stderr


def test_too_little_disk_is_one_line_with_both_numbers_before_anything_is_made(
    script: ModuleType, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=200_000_000))
    assert script.main([]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: installing needs about 1.5 GB of disk")
    assert "200 MB are free" in err
    assert err.count("\n") == 1
    assert not (clone / ".venv").exists()


@pytest.fixture
def recorded_pip(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Calls of pip, none of which installs anything; the environment itself is made by a stand-in."""
    calls: list[tuple[str, ...]] = []

    def run_pip(*arguments: str, shown: bool = False) -> str:
        calls.append(arguments)
        return '{"install": []}' if "--report" in arguments else ""

    def make_environment(present: object, wanted: object) -> None:
        script.venv_python().parent.mkdir(parents=True, exist_ok=True)
        script.venv_python().touch()

    monkeypatch.setattr(script, "run_pip", run_pip)
    monkeypatch.setattr(script, "make_environment", make_environment)
    return calls


def installs(calls: list[tuple[str, ...]]) -> list[str]:
    """What pip was asked to install for good, beside pip itself."""
    return [call[-1] for call in calls if call[0] == "install" and "--dry-run" not in call and call[-1] != "pip"]


def test_a_second_run_installs_nothing(script: ModuleType, recorded_pip: list[tuple[str, ...]]) -> None:
    assert script.main([]) == 0
    assert installs(recorded_pip) == ["."]
    recorded_pip.clear()
    assert script.main([]) == 0
    assert recorded_pip == []


def test_pip_compiles_what_it_installs_to_where_python_looks_for_it(
    script: ModuleType, clone: Path, recorded_pip: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = clone / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    recorded, kept = script.run_pip, []

    def run_pip(*arguments: str, shown: bool = False) -> str:
        kept.append((packages / "octavo-pycache.pth").exists())
        return str(recorded(*arguments, shown=shown))

    monkeypatch.setattr(script, "run_pip", run_pip)
    assert script.main([]) == 0
    assert kept and all(kept)


def test_every_target_lets_python_keep_its_bytecode(clone: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    makefile = (clone / "Makefile").read_text()
    (clone / "Makefile").write_text(f'{makefile}\nshow:\n\t@echo "<$$PYTHONDONTWRITEBYTECODE>"\n')
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["make", "-s", "show"], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "<>\n"


def test_the_tested_versions_constrain_every_install(script: ModuleType, recorded_pip: list[tuple[str, ...]]) -> None:
    script.main(["dev"])
    for call in recorded_pip:
        assert ("-c", "constraints.txt") in pairwise(call)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_of_what_is_asked_for_installs_again(
    script: ModuleType, clone: Path, recorded_pip: list[tuple[str, ...]], name: str
) -> None:
    script.main([])
    recorded_pip.clear()
    with (clone / name).open("a") as file:
        file.write("# changed\n")
    script.main([])
    assert installs(recorded_pip) == ["."]


def test_the_dev_extra_is_added_once_and_kept(script: ModuleType, recorded_pip: list[tuple[str, ...]]) -> None:
    for extras, expected in (([], ["."]), (["dev"], [".[dev]"]), ([], []), (["dev"], [])):
        recorded_pip.clear()
        script.main(extras)
        assert installs(recorded_pip) == expected


def test_another_torch_index_is_used_for_torch_alone_and_remembered(
    script: ModuleType, recorded_pip: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", "http://index.example/cpu")
    script.main([])
    assert installs(recorded_pip) == ["torch", "torch", "."]
    for call in recorded_pip:
        assert ("http://index.example/cpu" in call) == (call[-1] == "torch")
    recorded_pip.clear()
    monkeypatch.delenv("TORCH_INDEX")
    script.main([])
    assert recorded_pip == []


def test_an_interrupted_install_is_taken_up_again(
    script: ModuleType, recorded_pip: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(present: object, wanted: object) -> None:
        raise script.SetupError("pip failed")

    with monkeypatch.context() as patch:
        patch.setattr(script, "install", fail)
        assert script.main([]) == 1
    recorded_pip.clear()
    assert script.main([]) == 0
    assert installs(recorded_pip) == ["."]


def test_the_size_of_the_download_is_told_before_it_begins(
    script: ModuleType,
    recorded_pip: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for name, size in (("torch-2.13.0+cpu-py3.whl", 3_000_000), ("rich-15.whl", 1_000_000)):
        (tmp_path / name).write_bytes(b"\0" * size)
    urls = [(tmp_path / "torch-2.13.0+cpu-py3.whl").as_uri(), (tmp_path / "rich-15.whl").as_uri(), "file:///gone.whl"]
    monkeypatch.setattr(script, "wheel_urls", lambda wanted: urls)
    told_at: list[int] = []
    monkeypatch.setattr(script, "install", lambda present, wanted: told_at.append(len(capsys.readouterr().err)))
    monkeypatch.setattr(script, "say", lambda line: print(line, file=sys.stderr))
    script.announce_download(script.wanted_stamp(None, ()))
    assert capsys.readouterr().err == (
        "to download: 2 packages, 4 MB and 1 of unknown size; the largest is torch-2.13.0+cpu-py3.whl, 3 MB\n"
    )
    monkeypatch.setattr(script, "wheel_urls", lambda wanted: urls[:1])
    script.main([])
    assert told_at[0] > 0


def test_a_download_that_does_not_fit_is_refused(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.whl").write_bytes(b"\0" * 1_000_000)
    monkeypatch.setattr(script, "wheel_urls", lambda wanted: [(tmp_path / "torch.whl").as_uri()])
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    with pytest.raises(script.SetupError, match=r"needs about 4 MB of disk in .*, where 3 MB are free"):
        script.announce_download(script.wanted_stamp(None, ()))


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert octavo.__version__ == version("octavo")


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(octavo.__file__).parent / "py.typed").is_file()


def test_the_public_names_are_sorted_and_exist() -> None:
    # Constants, then classes, then the rest, as the linter sorts them.
    assert octavo.__all__ == sorted(octavo.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    assert {"LLM", "SamplingParams", "RequestOutput"} <= set(octavo.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        octavo.Engine  # noqa: B018 - the access is what is tested


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, octavo; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_torch_is_pinned_without_a_local_version_and_every_pin_is_exact() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in lines
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line) for line in lines)


def tracked_text_files() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def search(pattern: re.Pattern[str], keep: Callable[[Path], bool]) -> list[str]:
    found = []
    for path in filter(keep, tracked_text_files()):
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    return found


def test_no_tracked_file_names_a_path_of_a_developers_machine() -> None:
    own = "/" + "home/"  # spelled so that this file does not find itself
    machine = re.compile(rf"(?<![\w.])(?:{own}\w|/Users/\w|/{'root'}/|/{'work'}/|/{'tmp'}/\w)")
    assert search(machine, lambda path: path.suffix != ".json") == []


def test_every_document_that_the_readme_links_to_exists() -> None:
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists()


def test_the_readme_map_names_what_exists() -> None:
    block = (ROOT / "README.md").read_text().split("## Map")[1].split("```")[1]
    for line in block.splitlines():
        name = line.split()[0] if line.strip() else ""
        if name and name != "src/octavo/":
            base = ROOT / "src" / "octavo" if line.startswith("  ") else ROOT
            assert (base / name).exists(), name


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"generate", "test", "check", "nightly", "gpu-test"} <= targets
    assert set(re.findall(r"make ([a-z-]+)\b(?!=)", (ROOT / "README.md").read_text())) <= targets | {"as"}
