"""The pages and drawings that are made from the code are those of the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from octavo.cli.main import app
from octavo.models.loaders.encodings import GGUF_ENCODINGS
from octavo.models.registry import MODELS
from scripts.reference.flags import VARIABLES, commands, flags_page
from scripts.reference.metrics import exposed_name, families, labels
from scripts.reference.models import models_page
from scripts.reference.pages import made_files
from scripts.reference.svg import FILLS, INKS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "octavo"


def test_every_made_file_is_up_to_date() -> None:
    made = made_files(ROOT)
    outdated = [
        name
        for name, text in made.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    assert outdated == [], "run `make docs-reference` and commit what it writes"
    kept = {path.relative_to(ROOT).as_posix() for folder in ("reference", "drawings") for path in _files(folder)}
    assert kept == set(made)


def _files(folder: str) -> list[Path]:
    return [path for path in (ROOT / "docs" / folder).iterdir() if path.is_file()]


def test_the_page_of_flags_has_every_flag_of_every_command() -> None:
    sections = flags_page().split("\n## ")
    for name, command in commands(typer.main.get_command(app)):
        (section,) = (each for each in sections if each.startswith(f"octavo {name}\n"))
        given = {flag for option in command.params for flag in [*option.opts, *option.secondary_opts]} - {"--help"}
        documented = set(re.findall(r"`(--?[a-z][a-z-]*)`", section))
        assert {flag for flag in given if flag.startswith("-")} == documented


def test_every_variable_that_the_code_reads_is_on_the_page_of_flags() -> None:
    named = {name for path in SOURCE.rglob("*.py") for name in re.findall(r"\"(OCTAVO_[A-Z_]+)\"", path.read_text())}
    page = flags_page()
    assert {"OCTAVO_MODELS", "OCTAVO_DEBUG"} <= named & set(VARIABLES)
    assert all(f"`{name}`" in page for name in named)


def test_every_metric_that_the_code_names_is_on_the_page_of_metrics() -> None:
    names = {exposed_name(metric) for metric in families()}
    source = (SOURCE / "server" / "metrics.py").read_text(encoding="utf-8")
    declared = set(re.findall(r"\"(octavo_[a-z_]+)\"", source))
    assert {re.sub("_(total|info)$", "", name) for name in names} == declared
    of = {metric.name: labels(metric) for metric in families()}
    assert of["octavo_kv_blocks"] == ["group", "state"]
    assert of["octavo_step_seconds"] == []
    assert of["octavo_requests"] == ["endpoint", "outcome"]
    assert of["octavo_decode_steps"] == ["how"]
    assert all(metric.samples for metric in families())


def test_every_family_and_encoding_is_on_the_page_of_models() -> None:
    page = models_page()
    assert all(f"| `{model_type}` |" in page for model_type in MODELS)
    assert all(f"| `{encoding.name}` |" in page for encoding in GGUF_ENCODINGS.values())


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_drawings_can_be_read_in_both_themes() -> None:
    for theme, inks in INKS.items():
        for ground in (inks["ground"], *FILLS[theme].values()):
            assert _contrast(inks["ink"], ground) >= 4.5, (theme, ground)
        assert _contrast(inks["line"], inks["ground"]) >= 4.5


def test_every_drawing_stands_on_a_page_with_words_for_who_cannot_see_it() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    for path in _files("drawings"):
        text = path.read_text(encoding="utf-8")
        assert re.search(rf"!\[[^\]]+\]\(drawings/{path.name}\)", pages), path.name
        assert "<title" in text and "<desc" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
