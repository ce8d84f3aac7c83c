"""Which files are made, and by what."""

from __future__ import annotations

from pathlib import Path

from scripts.reference.coverage import coverage_page
from scripts.reference.drawings import DRAWINGS
from scripts.reference.examples import examples_page
from scripts.reference.flags import flags_page
from scripts.reference.metrics import metrics_page
from scripts.reference.models import models_page


def made_files(root: Path) -> dict[str, str]:
    """Contents by path below `root`."""
    pages = {
        "docs/reference/flags.md": flags_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/models.md": models_page(),
        "docs/reference/api-coverage.md": coverage_page(),
        "docs/reference/examples.md": examples_page(root / "examples"),
    }
    return pages | {f"docs/drawings/{name}.svg": str(draw()) for name, draw in DRAWINGS.items()}
