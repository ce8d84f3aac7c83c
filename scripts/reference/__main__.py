"""Writes the pages and drawings that are made from the code: `make docs-reference`."""

from __future__ import annotations

from pathlib import Path

from scripts.reference.pages import made_files

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    for name, text in made_files(ROOT).items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {name}")


if __name__ == "__main__":
    main()
