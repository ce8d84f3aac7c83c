"""The file that a batch's answers are appended to: what it has already, and a last line that a kill cut short."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from octavo.errors import InvalidRequest
from octavo.server.batch.lines import LineKey, key_of_answer
from octavo.store.lock import file_lock


class AnswerFile:
    """Open for one batch at a time. `answered` is what it had when it was opened."""

    def __init__(self, file: IO[bytes], answered: frozenset[LineKey]) -> None:
        self._file = file
        self.answered = answered

    def append(self, line: bytes) -> None:
        """Write a whole line, so that the next one to open the file finds it. Raises `InvalidRequest` if it cannot."""
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise InvalidRequest(
                f"{self._file.name!r} cannot be written ({error.strerror}); make room and start again, "
                "which goes on from here"
            ) from error


@contextmanager
def answer_file(path: Path) -> Iterator[AnswerFile]:
    """The file at `path`, made if it is not there; a last line that is cut short is taken away.

    Raises `InvalidRequest` for a file that has something else in it, cannot be opened, or is open for another batch.
    """

    def refuse() -> None:
        raise InvalidRequest(f"{str(path)!r} is being written by another batch; wait for it, or name another file")

    with ExitStack() as opened:
        try:
            opened.enter_context(file_lock(path, on_wait=refuse))
            file = opened.enter_context(path.open("r+b"))
            answered = _read(file, path)
        except OSError as error:
            raise InvalidRequest(f"{str(path)!r} cannot be opened ({error.strerror}); name another file") from error
        yield AnswerFile(file, answered)


def _read(file: IO[bytes], path: Path) -> frozenset[LineKey]:
    """Leaves `file` at its end."""
    answered: set[LineKey] = set()
    end = 0
    for number, raw in enumerate(file, 1):
        key = key_of_answer(raw)
        if key is None:
            if raw.endswith(b"\n"):
                raise InvalidRequest(
                    f"line {number} of {str(path)!r} is not an answer of a batch; name another file, or mend it"
                )
            break
        answered.add(key)
        end += len(raw)
        if not raw.endswith(b"\n"):
            file.seek(end)
            file.write(b"\n")
            end += 1
            break
    file.truncate(end)
    file.seek(end)
    return frozenset(answered)
