"""Which files of a hub repository a name asks for. Pure: works on names alone, fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from octavo.errors import LoadError

_REFERENCE = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<quant>[\w.-]+))?", re.ASCII)
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_DIRECTORY_FILES = frozenset(
    (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    )
)


@dataclass(frozen=True, slots=True)
class HubReference:
    """`owner/name`, or `owner/name:quant` to pick one GGUF among several."""

    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, name: str) -> HubReference | None:
        """The reference that `name` spells, or None if it has another form."""
        match = _REFERENCE.fullmatch(name)
        return cls(match["repo"], match["quant"]) if match else None

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Files to fetch, relative to the repository; `entry` is what a loader opens ("." for the directory itself)."""

    entry: str
    files: tuple[str, ...]


def select_files(reference: HubReference, files: Sequence[str]) -> Selection:
    """Choose among a repository's `files`. Raises `LoadError` listing what is there if the choice is not clear."""
    safe = [file for file in files if _is_safe(file)]
    if reference.quant is None and (directory := _model_directory(safe)):
        return directory
    models = _gguf_models(reference, safe)
    if not models:
        raise LoadError(
            f"{reference.repo} has neither GGUF files nor config.json with safetensors; it has "
            f"{_listing(sorted(files)) or 'no files'}"
        )
    if reference.quant is not None:
        chosen = [model for model in models if _names_quant(model.entry, reference.quant)]
    else:
        chosen = models
    if len(chosen) == 1:
        return chosen[0]
    entries = _listing([model.entry for model in chosen or models])
    if chosen:
        raise LoadError(f"{reference} matches {len(chosen)} files; name one as {reference.repo}:QUANT: {entries}")
    raise LoadError(f"{reference.repo} has no GGUF file for {reference.quant!r}; it has {entries}")


def _is_safe(file: str) -> bool:
    # The server's names become paths here.
    path = PurePosixPath(file)
    return not path.is_absolute() and not {"..", ""} & set(file.split("/")) and not re.search(r"[\\:\x00-\x1f]", file)


def _model_directory(files: Sequence[str]) -> Selection | None:
    tensors = [file for file in files if file.endswith(".safetensors") and "/" not in file]
    if "config.json" not in files or not tensors:
        return None
    # Some repositories hold the same weights twice, once under the name of another program's format.
    standard = [file for file in tensors if not file.startswith("consolidated")]
    return Selection(".", tuple(sorted({*(standard or tensors), *(_DIRECTORY_FILES & set(files))})))


def _gguf_models(reference: HubReference, files: Sequence[str]) -> list[Selection]:
    """One selection per GGUF model; the parts of a split set are one. Vision projectors are no models."""
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.lower().endswith(".gguf") and not PurePosixPath(file).name.lower().startswith("mmproj"):
            split = _SPLIT.fullmatch(file)
            models.setdefault(f"{split['stem']}-of-{split['count']}" if split else file, []).append(file)
    for parts in models.values():
        split = _SPLIT.fullmatch(parts[0])
        if split and len(parts) != int(split["count"]):
            raise LoadError(f"{reference.repo} has only {len(parts)} of the {int(split['count'])} parts of {parts[0]}")
    return [Selection(parts[0], tuple(parts)) for parts in models.values()]


def _names_quant(file: str, quant: str) -> bool:
    # Whole words only: Q4_K must not quietly become Q4_K_M, nor Q4_0 be found in Q4_0_8_8.
    return re.search(rf"(?:^|[-_./]){re.escape(quant)}(?:$|[-./])", file, re.IGNORECASE) is not None


def _listing(names: Sequence[str], limit: int = 12) -> str:
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
