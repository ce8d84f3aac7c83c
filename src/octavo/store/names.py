"""The forms a MODEL name can take: an alias, a local path, a hub repository. Looks at no file's content."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import LoadError
from octavo.store.aliases import ALIASES
from octavo.store.hub_files import HubReference

FORMS = (
    f"an alias ({', '.join(ALIASES)}), the path of a .gguf file or model directory, "
    "or owner/name[:quant] on the Hugging Face hub"
)


def local_path(name: str) -> Path | None:
    """The existing file or directory that `name` is the path of, else None. One that may not be looked at exists."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # the home of a user who does not exist
        return None
    try:
        return path if name and path.exists() else None
    except PermissionError:
        return path  # whoever opens it says so, and names it
    except (OSError, ValueError):  # too long for a path, or with a null character
        return None


def hub_reference(name: str) -> HubReference | None:
    """What `name` means on the hub, or None if it is an alias or has the form of a path."""
    return None if name in ALIASES or looks_like_path(name) else HubReference.parse(name)


def looks_like_path(name: str) -> bool:
    """Whether a person who wrote `name` must have meant a path, whether or not it exists."""
    reference = HubReference.parse(name)
    if reference is not None and reference.quant is not None:
        return False
    separators = {"/", os.sep}
    return (
        os.path.isabs(name)
        or name.startswith((".", "~"))
        or name.lower().endswith((".gguf", *separators))
        or sum(name.count(separator) for separator in separators) > 1
    )


def unknown_model(name: str) -> LoadError:
    """The error for a name that has none of the forms, or is the path of nothing."""
    problem = f"there is no file or directory {name!r}" if looks_like_path(name) else f"unknown model {name!r}"
    return LoadError(f"{problem}; give {FORMS}")


def lock_name(name: str) -> str:
    """Names that write the same files share this: all quantisations of one repository, else the name itself."""
    reference = hub_reference(name)
    return reference.repo if reference else name
