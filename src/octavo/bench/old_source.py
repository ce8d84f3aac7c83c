"""The package as it was at a commit, taken out of the git checkout that this process runs from, to be run beside it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import octavo
from octavo.bench.stamp import commit
from octavo.environment import child_environment
from octavo.errors import EngineFault, InvalidRequest

_PACKAGE = "src/octavo"


def checkout() -> Path:
    """Where this package's git checkout would lie, if it runs from one."""
    return Path(octavo.__file__).resolve().parents[2]


def clean_commit(root: Path) -> str:
    """The commit of a checkout without changes, which can be brought back. Raises `InvalidRequest` if it is none."""
    found = commit(root)
    if found is None:
        raise InvalidRequest("this octavo runs from no git checkout, so that its code could not be run again later")
    if found.endswith("+changes"):
        raise InvalidRequest("the checkout has changes, which could not be brought back later; commit them first")
    return found


@contextmanager
def old_source(root: Path, wanted: str) -> Iterator[dict[str, str]]:
    """Environment variables under which Python imports the package of commit `wanted`, while this is open.

    Raises `InvalidRequest` if the checkout at `root` does not have that commit.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-") as scratch:
        with tarfile.open(fileobj=io.BytesIO(_archive(root, wanted))) as archive:
            archive.extractall(scratch, filter="data")
        source = Path(scratch).resolve() / "src"
        inherited = os.environ.get("PYTHONPATH")
        environment = {"PYTHONPATH": os.pathsep.join([str(source), *([inherited] if inherited else [])])}
        _check_import(source, environment)
        yield environment


def _archive(root: Path, wanted: str) -> bytes:
    remedy = "run this from a checkout whose history has it (a shallow clone has not)"
    command = ["git", "-C", str(root), "archive", "--format=tar", wanted, _PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise InvalidRequest(f"git cannot be run ({error.strerror}); {remedy}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise InvalidRequest(f"the code of commit {wanted} is not at hand ({said[-1]}); {remedy}")
    return done.stdout


def _check_import(source: Path, environment: dict[str, str]) -> None:
    """Raises `EngineFault` if something comes before `PYTHONPATH`, so that both sides would be the same code."""
    command = [sys.executable, "-P", "-c", "import octavo; print(octavo.__file__)"]
    given = {**child_environment(), **environment}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    if done.returncode != 0 or not Path(found).resolve().is_relative_to(source):
        said = found or (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise EngineFault(f"the saved commit's code would not be what runs: Python imports {said}")
