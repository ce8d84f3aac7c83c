"""A measurement's protocol as a file: what is measured with which model, and what it gave when it was saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.percentiles import Spread
from octavo.bench.served_arm import ServedLoad
from octavo.errors import InvalidRequest, shown

VERSION = 1  # of what is measured and how; files of another are refused


@dataclass(frozen=True, slots=True)
class SavedProtocol:
    """`flags` are those of `octavo serve`, `figures` by cell and name. `commit` is the code that gave them."""

    model: str
    model_digest: str
    flags: tuple[str, ...]
    load: ServedLoad
    rounds: int
    commit: str
    environment: Mapping[str, Any]
    figures: Mapping[str, Spread]

    @staticmethod
    def check_target(path: Path) -> None:
        """Refuse, before anything is measured, what `write` would after it. Raises `InvalidRequest`."""
        if path.exists():
            raise InvalidRequest(f"{str(path)!r} exists already; name another file")
        if not path.parent.is_dir():
            raise InvalidRequest(f"{str(path)!r} cannot be written, its directory does not exist")

    def write(self, path: Path) -> None:
        """To a new file. Raises `InvalidRequest` if it exists or cannot be written."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(self.as_object(), indent=1) + "\n")
        except OSError as error:
            raise InvalidRequest(f"{str(path)!r} cannot be written ({error.strerror}); name another file") from error

    def as_object(self) -> dict[str, Any]:
        return {
            "bench": "regress",
            "version": VERSION,
            "model": self.model,
            "model_digest": self.model_digest,
            "flags": list(self.flags),
            "load": self.load.as_object(),
            "rounds": self.rounds,
            "commit": self.commit,
            "environment": dict(self.environment),
            "figures": {name: spread.as_object() for name, spread in self.figures.items()},
        }

    @classmethod
    def read(cls, path: Path) -> SavedProtocol:
        """Raises `InvalidRequest` for a file that `write` did not write, or that another version did."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidRequest(f"{str(path)!r} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InvalidRequest(f"{str(path)!r} is no saved protocol ({error})") from error
        if not isinstance(found, dict) or found.get("bench") != "regress":
            raise InvalidRequest(f"{str(path)!r} is no saved protocol; make one with `octavo bench regress save`")
        if found.get("version") != VERSION:
            raise InvalidRequest(
                f"{str(path)!r} has version {shown(found.get('version'))} of the protocol, this is version {VERSION}, "
                "and the two measure different things; save it anew"
            )
        try:
            return cls._of(found)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{str(path)!r} is damaged ({type(error).__name__}: {error}); save the protocol anew"
            ) from error

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> SavedProtocol:
        load = dict(found["load"])
        load |= {name: tuple(load[name]) for name in ("prompt_tokens", "concurrencies")}
        return cls(
            model=found["model"],
            model_digest=found["model_digest"],
            flags=tuple(found["flags"]),
            load=ServedLoad(**load),
            rounds=int(found["rounds"]),
            commit=found["commit"],
            environment=dict(found["environment"]),
            figures={name: Spread(**spread) for name, spread in found["figures"].items()},
        )


def model_digest(path: Path) -> str:
    """BLAKE2b, in hex, of the file, or of all files of the directory with their names."""
    if path.is_file():
        return _digest(path)
    digest = hashlib.blake2b(digest_size=32)
    for each in sorted(each for each in path.rglob("*") if each.is_file()):
        digest.update(f"{each.relative_to(path).as_posix()} {_digest(each)}\n".encode())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
