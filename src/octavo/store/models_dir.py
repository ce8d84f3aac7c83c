"""Where model files lie, and the room left there. Creates nothing until something is to be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from octavo.environment import cache_home
from octavo.errors import LoadError

# Below this directory the store keeps its own records: manifests, locks, unfinished downloads.
STATE_DIR = ".octavo"


def models_dir() -> Path:
    """The absolute models directory: $OCTAVO_MODELS, else `octavo/models` in the user's cache directory.

    Raises `LoadError` if no home directory can be found to derive it from.
    """
    try:
        chosen = os.environ.get("OCTAVO_MODELS")
        root = Path(chosen).expanduser() if chosen else cache_home() / "octavo" / "models"
    except RuntimeError as error:
        raise LoadError(f"no home directory is known ({error}); set OCTAVO_MODELS to a directory for models") from error
    return root.absolute()


def make_directory(directory: Path) -> None:
    """Create `directory` with its parents. Raises `LoadError` if that is not allowed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise LoadError(
            f"cannot create {directory} ({reason}); set OCTAVO_MODELS to a directory you can write"
        ) from error


def refuse_other_than_directory(root: Path) -> None:
    """Raise `LoadError` if `root` is something else than a directory, or could not become one where it is to lie."""
    nearest = next((path for path in (root, *root.parents) if os.path.lexists(path)), root)
    if os.path.lexists(nearest) and not nearest.is_dir():
        raise LoadError(
            f"cannot use {root} ({nearest} is not a directory); set OCTAVO_MODELS to a directory for models"
        )


def ensure_room(directory: Path, needed: int, what: str) -> None:
    """Raise `LoadError` with both numbers if `directory`'s disk has fewer than `needed` bytes free."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise LoadError(
            f"{what} needs {format_size(needed)} of disk in {directory}, where {format_size(free)} are free; "
            "free some, or set OCTAVO_MODELS to a directory on a larger disk"
        )


def format_size(num_bytes: int) -> str:
    """`num_bytes` in decimal units as file managers print them, e.g. `98.4 MB`."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def bytes_below(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; what vanishes while being measured counts nothing."""
    if path.is_dir() and not path.is_symlink():
        return sum(bytes_below(child) for child in _children(path))
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
