"""The site is built without a warning, and a reader's browser asks no other host for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("material", reason="`make docs` installs MkDocs Material")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages and all((site / page).is_file() for page in pages)


def test_no_page_has_a_browser_ask_another_host(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=\"?https?:"
        r"|<link\b(?![^>]*\brel=\"?canonical)[^>]*\bhref=\"?(?:https?:)?//"
    )
    for path in site.rglob("*.html"):
        assert loading.search(path.read_text(encoding="utf-8")) is None, path.name
    for path in site.rglob("*.css"):
        assert re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")) is None, (
            path.name
        )


def test_what_would_load_from_elsewhere_in_a_browser_is_not_used(site: Path) -> None:
    """Material's script fetches these for pages that have them."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert 'class="mermaid"' not in text
        assert 'data-md-component="source"' not in text  # a repository, whose stars are counted
        assert "giscus" not in text


@pytest.mark.parametrize("fault", ["[x](missing.md)", "[x](serving.md#no-such-section)", "![x](drawings/none.svg)"])
def test_a_broken_link_fails_the_build(tmp_path: Path, fault: str) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path / "mkdocs.yml")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{fault}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0 and "index.md" in done.stderr
