"""`octavo pull`, `list` and `rm`. Results go to standard output, progress to standard error."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from octavo.cli.options import option


def pull(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="An alias, or owner/name[:quant] on the hub.")],
) -> None:
    """Fetch models that are not here yet; an interrupted fetch goes on where it stopped."""
    from octavo.store import TerminalProgress, pull_model, shown
    from octavo.store.models_dir import format_size

    for name in names:
        model = pull_model(name, progress=TerminalProgress())
        print(shown(f"{model.name}: {model.path} ({format_size(model.size)})"))
        print(shown(f"licence: {model.licence or 'not recorded, as Octavo did not fetch this file'}"))


def list_(
    as_json: Annotated[bool, option("--json", help="Print one JSON array.")] = False,
) -> None:
    """List the models on this machine: name, size, path."""
    from octavo.store import list_models, models_dir, shown
    from octavo.store.models_dir import format_size

    models = list_models()
    if as_json:
        fields = [
            {"name": model.name, "size_bytes": model.size, "path": str(model.path), "licence": model.licence}
            for model in models
        ]
        print(json.dumps(fields, indent=2))
        return
    if not models:
        typer.echo(shown(f"no models in {models_dir()}; `octavo pull smollm2` fetches one"), err=True)
        return
    found = [(shown(model.name), format_size(model.size), shown(str(model.path))) for model in models]
    rows = [("NAME", "SIZE", "PATH"), *found]
    name_width, size_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, size, path in rows:
        print(f"{name:<{name_width}}  {size:>{size_width}}  {path}")


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `octavo list` shows.")],
) -> None:
    """Remove a model from the models directory."""
    from octavo.store import remove_model, shown
    from octavo.store.models_dir import format_size

    model = remove_model(name)
    print(shown(f"removed {model.name} ({format_size(model.size)})"))
