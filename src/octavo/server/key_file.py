"""API keys from a file. Imports nothing of the server, so that a bad file is told before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import InvalidRequest

MAX_KEY_FILE_BYTES = 1 << 20


def read_key_file(path: Path) -> tuple[str, ...]:
    """Keys from a file, one a line; blank lines are skipped, nothing is a comment. Raises `InvalidRequest`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"the API key file {path} cannot be read ({error.strerror or error}); give a file with one key a line"
        ) from error
    if len(content) > MAX_KEY_FILE_BYTES:
        raise InvalidRequest(f"the API key file {path} is longer than {MAX_KEY_FILE_BYTES} bytes; give one key a line")
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the API key file {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InvalidRequest(f"the API key file {path} holds no key; write one key a line, or leave the flag out")
    return keys
