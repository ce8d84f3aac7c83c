"""What a MODEL name means, what is listed, and what may be removed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from model_sources import RecordingProgress

from octavo.errors import InvalidRequest, LoadError
from octavo.store import list_models, models_dir, pull_model, remove_model, resolve_model
from octavo.store.aliases import ALIASES
from octavo.store.models_dir import format_size


def test_a_path_is_taken_as_it_is(tmp_path: Path, models: Path, progress: RecordingProgress) -> None:
    file = tmp_path / "my model.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file), progress=progress) == file
    assert resolve_model(str(tmp_path), progress=progress) == tmp_path
    assert not models.exists()


def test_a_relative_directory_named_like_a_repository_is_a_path(
    tmp_path: Path, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name", progress=progress) == Path("owner/name")


def test_no_name_means_the_default_alias(models: Path, progress: RecordingProgress) -> None:
    models.mkdir()
    path = models / ALIASES["smollm2"].file_name
    path.write_bytes(b"GGUF")
    assert resolve_model(None, progress=progress) == path


def test_an_alias_is_not_shadowed_by_a_file_of_its_name(
    tmp_path: Path, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.mkdir()
    (models / ALIASES["gemma3"].file_name).write_bytes(b"GGUF")
    (tmp_path / "gemma3").write_text("notes")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("gemma3", progress=progress) == models / ALIASES["gemma3"].file_name


@pytest.mark.parametrize(
    "name", ["nope", "", "smollm2:Q4_0", "SMOLLM2", "a b", "x" * 5000, "owner/name:", "~nobody-here"]
)
def test_an_unknown_name_is_refused_with_the_aliases_and_forms(
    models: Path, progress: RecordingProgress, name: str
) -> None:
    with pytest.raises(LoadError, match=r"smollm2, gemma3, qwen05, qwen15.*\.gguf.*owner/name\[:quant\]") as caught:
        resolve_model(name, progress=progress)
    assert repr(name) in str(caught.value)
    assert not models.exists()


@pytest.mark.parametrize("name", ["./x.gguf", "x.gguf", "/nowhere/model", "../owner", "a/b/c", "dir/", "dir/x.gguf"])
def test_a_path_of_nothing_is_refused_without_asking_the_hub(
    models: Path, progress: RecordingProgress, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "not a url, so that asking would fail otherwise")
    with pytest.raises(LoadError, match="there is no file or directory"):
        resolve_model(name, progress=progress)


def test_pulling_a_local_path_is_refused(tmp_path: Path, models: Path, progress: RecordingProgress) -> None:
    with pytest.raises(InvalidRequest, match="local path"):
        pull_model(str(tmp_path), progress=progress)


def test_files_put_there_by_hand_are_listed_and_found_by_their_names(models: Path, progress: RecordingProgress) -> None:
    (models / "my-dir").mkdir(parents=True)
    (models / "my-dir" / "config.json").write_text("{}")
    (models / "mine.gguf").write_bytes(b"GGUF!")
    (models / "notes.txt").write_text("no model")
    (models / ALIASES["qwen05"].file_name).write_bytes(b"GGUF")
    assert [(model.name, model.size) for model in list_models()] == [("mine.gguf", 5), ("my-dir", 2), ("qwen05", 4)]
    assert resolve_model("mine.gguf", progress=progress) == models / "mine.gguf"
    assert resolve_model("my-dir", progress=progress) == models / "my-dir"


def test_an_absent_models_directory_lists_nothing_and_is_not_made(models: Path) -> None:
    assert list_models() == []
    assert not models.exists()


def test_a_model_is_removed_by_name_or_by_path(models: Path) -> None:
    models.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (models / name).write_bytes(b"GGUF")
    assert remove_model("a.gguf").size == 4
    remove_model(str(models / ".." / models.name / "b.gguf"))
    assert list_models() == []


@pytest.mark.parametrize("name", ["{outside}", "{models}/../outside.gguf", "../outside.gguf", "/etc/passwd"])
def test_a_path_outside_the_models_directory_is_never_removed(tmp_path: Path, models: Path, name: str) -> None:
    models.mkdir()
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF")
    with pytest.raises(InvalidRequest, match="lies outside the models directory"):
        remove_model(name.format(outside=outside, models=models))
    assert outside.exists()


@pytest.mark.parametrize("name", ["{models}", "{models}/.octavo", "{models}/notes.txt", "notes.txt", "nope", ""])
def test_only_what_is_listed_is_removed(models: Path, name: str) -> None:
    (models / ".octavo").mkdir(parents=True)
    (models / "notes.txt").write_text("keep")
    with pytest.raises(InvalidRequest):
        remove_model(name.format(models=models))
    assert (models / "notes.txt").exists()
    assert (models / ".octavo").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
def test_of_a_link_only_the_link_is_removed(tmp_path: Path, models: Path) -> None:
    models.mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "config.json").write_text("{}")
    (tmp_path / "real.gguf").write_bytes(b"GGUF")
    (models / "link").symlink_to(tmp_path / "real")
    (models / "link.gguf").symlink_to(tmp_path / "real.gguf")
    remove_model("link")
    remove_model("link.gguf")
    assert list_models() == []
    assert (tmp_path / "real" / "config.json").exists()
    assert (tmp_path / "real.gguf").exists()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"name": "x"}',
        '{"name": "x", "entry": "../../x", "files": [], "source": "", "licence": ""}',
    ],
)
def test_a_damaged_manifest_is_named_with_the_remedy(models: Path, content: str) -> None:
    manifest = models / ".octavo" / "manifests" / "owner%2fname.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(content)
    with pytest.raises(LoadError, match=r"owner%2fname\.json .*remove that file"):
        list_models()


def test_the_models_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_MODELS", "~/elsewhere")
    assert models_dir() == Path.home() / "elsewhere"
    monkeypatch.setenv("OCTAVO_MODELS", "relative")
    assert models_dir() == Path(os.getcwd()) / "relative"
    monkeypatch.setenv("OCTAVO_MODELS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_dir() == tmp_path / "octavo" / "models"


@pytest.mark.parametrize(
    ("platform", "below_home"),
    [
        ("linux", (".cache", "octavo", "models")),
        ("darwin", ("Library", "Caches", "octavo", "models")),
        ("win32", ("AppData", "Local", "octavo", "models")),
    ],
)
def test_the_default_models_directory_is_where_the_platform_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, below_home: tuple[str, ...]
) -> None:
    for name in ("OCTAVO_MODELS", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert models_dir() == tmp_path.joinpath(*below_home)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.1 GB"), (2e12, "2.0 TB")]
)
def test_sizes_are_told_in_decimal_units(size: int, text: str) -> None:
    assert format_size(int(size)) == text


def test_a_path_is_found_without_looking_below_it(
    tmp_path: Path, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert resolve_model(str(tmp_path), progress=progress) == tmp_path


def test_a_path_that_may_not_be_looked_at_is_left_to_the_loader_to_name(
    tmp_path: Path, models: Path, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    assert resolve_model(str(tmp_path / "secret"), progress=progress) == tmp_path / "secret"


@pytest.mark.parametrize("below", ["", "deeper/models"])
def test_a_models_directory_that_is_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("OCTAVO_MODELS", str(file / below))
    for use in (list_models, lambda: remove_model("smollm2")):
        with pytest.raises(LoadError, match=r"file is not a directory.*OCTAVO_MODELS"):
            use()


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
@pytest.mark.parametrize("form", ["{name}", "{models}/{name}"])
def test_what_is_no_model_in_the_models_directory_is_called_what_it_is(models: Path, form: str) -> None:
    (models / "folder.gguf").mkdir(parents=True)
    (models / "link.gguf").symlink_to("nowhere")
    (models / "notes.txt").write_text("keep")
    kinds = {"folder.gguf": "a directory without", "link.gguf": "a link to nowhere", "notes.txt": "a file other than"}
    for name, kind in kinds.items():
        with pytest.raises(InvalidRequest, match=rf"{name} is {kind}.*delete it by hand"):
            remove_model(form.format(models=models, name=name))
        assert os.path.lexists(models / name)
    with pytest.raises(InvalidRequest, match=r"no model 'absent\.gguf'"):
        remove_model("absent.gguf")
