"""Makes `.venv` and installs Octavo into it, once. Standard library only; `setup.sh` has checked the Python.

    python scripts/set_up.py [EXTRA ...]

Does nothing if `.venv` already holds what pyproject.toml, constraints.txt and the extras ask for. TORCH_INDEX names
another package index to take torch from; it is remembered until another is named. Writes only below `.venv` (and
pip its cache). What goes wrong is one line on standard error and exit status 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "octavo-setup.json"
CONSTRAINTS = "constraints.txt"

# The smallest environment there is (CPU build of torch, dev extra) takes 1.3 GB, measured on Linux with Python 3.11.
SMALLEST_ENVIRONMENT = 1_500_000_000
# Installed packages take about 2.2 times their wheels, and pip keeps the wheels in its cache.
ROOM_PER_DOWNLOADED_BYTE = 3.5
HEAD_TIMEOUT_SECONDS = 10


class SetupError(Exception):
    """What a person must know, in one line."""


@dataclass(frozen=True)
class Stamp:
    """What `.venv` holds: a digest of the two files that say what to install, and the choices made."""

    files: str
    python: str
    torch_index: str
    extras: tuple[str, ...]

    def covers(self, wanted: Stamp) -> bool:
        return (
            (self.files, self.python, self.torch_index) == (wanted.files, wanted.python, wanted.torch_index)
        ) and set(wanted.extras) <= set(self.extras)


def main(extras: Sequence[str]) -> int:
    try:
        set_up(tuple(extras))
    except SetupError as error:
        print(f"octavo: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def set_up(extras: tuple[str, ...]) -> None:
    present = read_stamp()
    wanted = wanted_stamp(present, extras)
    if present is not None and present.covers(wanted) and venv_python().exists():
        return
    ensure_room(SMALLEST_ENVIRONMENT if present is None else 0)
    make_environment(present, wanted)
    STAMP.unlink(missing_ok=True)  # what is interrupted from here on is not mistaken for complete
    keep_bytecode_in_environment()  # first, so that pip compiles what it installs to where Python looks for it
    run_pip("install", "--quiet", "--upgrade", "-c", CONSTRAINTS, "pip")
    announce_download(wanted)
    install(present, wanted)
    STAMP.write_text(json.dumps(asdict(wanted)), encoding="utf-8")


def read_stamp() -> Stamp | None:
    try:
        fields = json.loads(STAMP.read_text(encoding="utf-8"))
        return Stamp(fields["files"], fields["python"], fields["torch_index"], tuple(fields["extras"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # never finished, or written by another release: look again at everything


def wanted_stamp(present: Stamp | None, extras: tuple[str, ...]) -> Stamp:
    """What must be there now. Extras and the torch index of earlier runs are kept."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", CONSTRAINTS):
        digest.update((ROOT / name).read_bytes())
    return Stamp(
        files=digest.hexdigest(),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        torch_index=os.environ.get("TORCH_INDEX") or (present.torch_index if present else ""),
        extras=tuple(sorted({*extras, *(present.extras if present else ())})),
    )


def ensure_room(needed: int) -> None:
    free = shutil.disk_usage(ROOT).free
    if free < needed:
        raise SetupError(
            f"installing needs about {gigabytes(needed)} of disk in {ROOT}, where {gigabytes(free)} are free; "
            "free some, or clone to a larger disk"
        )


def make_environment(present: Stamp | None, wanted: Stamp) -> None:
    """Make `.venv` unless there is one that works; make it anew if it is of another Python."""
    if venv_python().exists() and environment_version() == wanted.python:
        return
    say(f"making .venv with Python {wanted.python}")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SetupError(
            f"{sys.executable} could not make a virtual environment ({last_line(done.stdout + done.stderr)}); "
            "on Debian and Ubuntu: apt install python3-venv"
        )


def environment_version() -> str:
    """`major.minor` of `.venv`'s Python; empty if it no longer runs."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([venv_python(), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def venv_python() -> Path:
    return VENV / "bin" / "python"


def announce_download(wanted: Stamp) -> None:
    """Print how much will be downloaded, before it is. Raises `SetupError` if there is no room for it."""
    urls = wheel_urls(wanted)
    sizes = download_sizes(urls)
    known = [size for size in sizes if size is not None]
    if not urls:
        return
    total = sum(known)
    more = f" and {len(urls) - len(known)} of unknown size" if len(known) < len(urls) else ""
    say(f"to download: {len(known)} packages, {gigabytes(total)}{more}; {largest(urls, sizes)}")
    ensure_room(int(total * ROOM_PER_DOWNLOADED_BYTE))


def wheel_urls(wanted: Stamp) -> list[str]:
    """Where pip would take each package from that is not installed yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in wanted.extras:
        requirements += project["optional-dependencies"][extra]
    urls: dict[str, str] = {}
    if wanted.torch_index:
        urls |= dry_run(["--index-url", wanted.torch_index, "torch"])
        requirements = [line for line in requirements if not line.startswith("torch>")]
    return list((dry_run(requirements) | urls).values())


def dry_run(arguments: Sequence[str]) -> dict[str, str]:
    """Package name to URL of all that `pip install` would add. Downloads metadata only."""
    report = run_pip("install", "--quiet", "--dry-run", "--report", "-", "-c", CONSTRAINTS, *arguments)
    return {
        item["metadata"]["name"].lower(): item["download_info"]["url"] for item in json.loads(report).get("install", [])
    }


def download_sizes(urls: Sequence[str]) -> list[int | None]:
    """Bytes behind each URL; None where its server does not say."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(download_size, urls))


def download_size(url: str) -> int | None:
    parts = urlsplit(url)
    try:
        if parts.scheme == "file":
            return Path(url2pathname(parts.path)).stat().st_size
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=HEAD_TIMEOUT_SECONDS, context=context) as response:
            return int(response.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None  # only the announcement needs it, and says how many sizes it does not know


def largest(urls: Sequence[str], sizes: Sequence[int | None]) -> str:
    size, url = max((size or 0, url) for size, url in zip(sizes, urls, strict=True))
    return f"the largest is {urlsplit(url).path.rpartition('/')[2].replace('%2B', '+')}, {gigabytes(size)}"


def install(present: Stamp | None, wanted: Stamp) -> None:
    if wanted.torch_index:
        index = ["-c", CONSTRAINTS, "--index-url", wanted.torch_index, "torch"]
        if present is None or present.torch_index != wanted.torch_index:
            # Another build of one version counts as installed already unless it is forced.
            run_pip("install", "--force-reinstall", "--no-deps", *index, shown=True)
        run_pip("install", *index, shown=True)
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    run_pip("install", "-c", CONSTRAINTS, "-e", f".{extras}", shown=True)


def keep_bytecode_in_environment() -> None:
    """Have the environment's Python keep its `__pycache__` below `.venv`, not in the source tree."""
    # Python runs such a line of a .pth file whenever it starts.
    line = "import sys; sys.pycache_prefix = sys.pycache_prefix or sys.prefix + '/pycache'\n"
    for packages in VENV.glob("lib/python*/site-packages"):
        (packages / "octavo-pycache.pth").write_text(line, encoding="utf-8")


def run_pip(*arguments: str, shown: bool = False) -> str:
    """Run pip in `.venv` and return what it printed; if `shown`, its output goes to standard error instead."""
    command = [str(venv_python()), "-m", "pip", *arguments, "--disable-pip-version-check", "--no-input"]
    output = sys.stderr if shown else subprocess.PIPE
    done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=None if shown else subprocess.PIPE, check=False)
    if done.returncode != 0:
        reason = "see above" if shown else last_line(done.stderr.decode(errors="replace"))
        raise SetupError(f"pip failed ({reason}); check the network and run the same command again")
    return "" if shown else done.stdout.decode(errors="replace")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1]


def gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
