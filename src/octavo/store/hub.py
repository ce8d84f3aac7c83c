"""Fetching model files from the Hugging Face hub, or from what HF_ENDPOINT names. Unfinished files are resumed.

`huggingface_hub` does the talking; the partial files are ours, because it discards its own when it fails.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from huggingface_hub import HfApi, ModelCardData, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # resolved lazily by its __getattr__
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
)

from octavo.errors import LoadError
from octavo.store.hub_files import HubReference, Selection, select_files
from octavo.store.manifest import Manifest, state_path
from octavo.store.models_dir import bytes_below, ensure_room, format_size, make_directory
from octavo.store.progress import Progress

TIMEOUT_SECONDS = 20.0
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

# The HTTP library below huggingface_hub has changed between its releases; the base of its errors has not moved.
_TransportError = cast(type[Exception], HfHubHTTPError.__bases__[0])


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. `size` in bytes (0 if unknown); `sha256` only where the hub states one."""

    name: str
    size: int
    sha256: str | None


def fetch_from_hub(reference: HubReference, root: Path, progress: Progress) -> Manifest:
    """Put the files that `reference` names below `root` and return their manifest. The caller holds its lock.

    Raises `LoadError` if the repository is missing, gated or out of reach, if the choice among its files is not
    clear, if there is too little disk, or if a file arrives damaged (it is then removed).
    """
    endpoint = _endpoint()
    with _one_line_errors(reference), _quiet_hub():
        with _expected_answer(reference, endpoint):
            info = HfApi(endpoint=endpoint).model_info(reference.repo, files_metadata=True, timeout=TIMEOUT_SECONDS)
            files = {file.name: file for file in _remote_files(info)}
            licence = _licence_line(reference, info)
        selection = select_files(reference, list(files))
        fetch = HubFetch(reference, [files[name] for name in selection.files], info.sha, endpoint, root)
        make_directory(root)
        ensure_room(root, fetch.total - fetch.bytes_done(), f"fetching {reference}")
        progress.note(f"fetching {reference} ({format_size(fetch.total)}) from the Hugging Face hub")
        with progress.bar(str(reference), fetch.total, fetch.bytes_done):
            fetch.run()
    return _manifest(reference, selection, info.sha, licence)


class HubFetch:
    """The download of some files of one repository at one commit. Mutates only its own files below `root`."""

    def __init__(
        self, reference: HubReference, files: Sequence[RemoteFile], commit: str | None, endpoint: str | None, root: Path
    ) -> None:
        self._reference = reference
        self._files = files
        self._commit = commit
        self._endpoint = endpoint
        self._destination = repository_directory(root, reference)
        self._partial = state_path(root, "partial", reference.repo)

    @property
    def total(self) -> int:
        return sum(file.size for file in self._files)

    def bytes_done(self) -> int:
        """Bytes here so far, whole files and partial ones. Safe to call from another thread."""
        return bytes_below(self._partial) + sum(bytes_below(self._destination / file.name) for file in self._files)

    def run(self) -> None:
        make_directory(self._partial)
        for file in self._files:
            target = self._destination / file.name
            if not (target.is_file() and self._matches(target, file)):
                self._fetch(file, target)
        if not any(self._partial.iterdir()):
            self._partial.rmdir()

    def _fetch(self, file: RemoteFile, target: Path) -> None:
        headers = build_hf_headers(library_name="octavo")
        url = hf_hub_url(self._reference.repo, file.name, revision=self._commit, endpoint=self._endpoint)
        metadata = get_hf_file_metadata(url, headers=headers, timeout=TIMEOUT_SECONDS, endpoint=self._endpoint)
        location = metadata.location or url
        if urlsplit(location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # the token is for the hub, not for the host that stores the bytes
        headers["Accept-Encoding"] = "identity"  # else a range would count compressed bytes
        # Named by content, so that a partial file is never continued with another version of the file.
        partial = self._partial / re.sub(r"\W", "", metadata.etag or hashlib.sha256(location.encode()).hexdigest())
        with partial.open("ab") as sink:
            if metadata.size is not None and sink.tell() > metadata.size:
                sink.truncate(0)
            http_get(location, sink, resume_size=sink.tell(), headers=headers, expected_size=metadata.size)
        if not self._matches(partial, file):
            partial.unlink()
            raise LoadError(f"{file.name} of {self._reference.repo} arrived damaged and was removed; fetch it again")
        make_directory(target.parent)
        partial.replace(target)

    def _matches(self, path: Path, file: RemoteFile) -> bool:
        if file.sha256 is None:
            return path.stat().st_size == file.size or file.size == 0
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256


def repository_directory(root: Path, reference: HubReference) -> Path:
    return root / "hub" / reference.repo


def _remote_files(info: ModelInfo) -> list[RemoteFile]:
    """Raises `TypeError` where a name or size is none."""
    files = [
        RemoteFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else None)
        for sibling in info.siblings or []
    ]
    for file in files:
        # What the server sent was checked by nobody.
        if not isinstance(file.name, str) or not isinstance(file.size, int) or file.size < 0:
            raise TypeError(f"file {file.name!r} of size {file.size!r}")
    return files


def _manifest(reference: HubReference, selection: Selection, commit: str | None, licence: str) -> Manifest:
    directory = f"hub/{reference.repo}"
    return Manifest(
        name=str(reference),
        entry=directory if selection.entry == "." else f"{directory}/{selection.entry}",
        files=tuple(f"{directory}/{file}" for file in selection.files),
        source=f"Hugging Face hub: {reference.repo} at {commit}",
        licence=licence,
    )


def _licence_line(reference: HubReference, info: ModelInfo) -> str:
    card: ModelCardData | dict[str, str] = info.card_data or {}
    tags = [tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")]
    licence = card.get("license_name") or card.get("license") or ", ".join(tags)
    if not licence:
        return f"none stated by the model card of {reference.repo}"
    return f"{licence}, as stated by the model card of {reference.repo}"


def _endpoint() -> str | None:
    endpoint = os.environ.get("HF_ENDPOINT")
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LoadError(f"HF_ENDPOINT is {endpoint!r}; it must be a URL such as http://127.0.0.1:8080")
    return endpoint.rstrip("/")


@contextmanager
def _expected_answer(reference: HubReference, endpoint: str | None) -> Iterator[None]:
    """Turn what the parsing of an answer raises when that is not a hub's (a login page, say) into a `LoadError`."""
    try:
        yield
    except (HFValidationError, HfHubHTTPError, OSError):
        raise  # told by `_one_line_errors`; some of them are ValueErrors too
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        server = f"HF_ENDPOINT, {endpoint}," if endpoint else "the hub"
        raise LoadError(
            f"{server} answered for {reference} with something else than a model's description "
            f"({_first_line(error)}); check that HF_ENDPOINT names a hub, and that no proxy answers in its place"
        ) from error


@contextmanager
def _one_line_errors(reference: HubReference) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as error:
        raise LoadError(
            f"{reference.repo} is gated: accept its terms on the hub, then set HF_TOKEN to a token that may read it"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise LoadError(_not_found(reference)) from error
    except OfflineModeIsEnabled as error:
        raise LoadError(
            f"{reference} is not on this machine and HF_HUB_OFFLINE is set; unset it, or give the path of a local model"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status == 404:
            raise LoadError(_not_found(reference)) from error
        answer = f"HTTP status {status}" if status is not None else _first_line(error)
        raise LoadError(f"the hub refused {reference} ({answer}); try again later, or check HF_TOKEN") from error
    except (_TransportError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise  # the disk's fault, which the caller reports
        raise LoadError(
            f"fetching {reference} failed ({_first_line(error)}); check the network and HF_ENDPOINT and run the "
            "command again: it goes on where it stopped"
        ) from error


def _not_found(reference: HubReference) -> str:
    return f"the hub has no model repository {reference.repo!r}, or it is private: check the name, or set HF_TOKEN"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence huggingface_hub's own bars and warnings while the context is open: ours say the same, in one place."""
    logger = logging.getLogger("huggingface_hub")
    level, bars = logger.level, not are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            enable_progress_bars()
