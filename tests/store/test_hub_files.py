"""Which files of a repository a name selects."""

from __future__ import annotations

import pytest

from octavo.errors import LoadError
from octavo.store.hub_files import HubReference, select_files

GGUF_REPO = [
    "README.md",
    "config.json",
    "model-Q4_0.gguf",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "mmproj-model-f16.gguf",
    "BF16/model-BF16-00001-of-00002.gguf",
    "BF16/model-BF16-00002-of-00002.gguf",
]
SAFETENSORS_REPO = [
    "README.md",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "consolidated.safetensors",
    "model.safetensors.index.json",
    "original/consolidated.00.pth",
    "original/model.safetensors",
    "tokenizer.json",
    "pytorch_model.bin",
]


def test_a_quantisation_picks_its_file_whatever_the_case() -> None:
    assert select_files(HubReference("o/r", "q4_k_m"), GGUF_REPO).entry == "model-Q4_K_M.gguf"


def test_a_quantisation_picks_all_parts_of_a_split_set_and_opens_the_first() -> None:
    selection = select_files(HubReference("o/r", "bf16"), GGUF_REPO)
    assert selection.entry == "BF16/model-BF16-00001-of-00002.gguf"
    assert selection.files == tuple(GGUF_REPO[-2:])


@pytest.mark.parametrize("quant", ["Q4_K", "Q4", "Q8_0", "K_X", "f16"])
def test_a_quantisation_that_is_not_there_is_refused_with_what_is_there(quant: str) -> None:
    with pytest.raises(LoadError, match=r"o/r has no GGUF file for .*model-Q4_0\.gguf, model-Q4_K_M\.gguf"):
        select_files(HubReference("o/r", quant), GGUF_REPO)


def test_an_ambiguous_quantisation_is_refused_with_the_candidates() -> None:
    with pytest.raises(LoadError, match=r"o/r:Q4_0 matches 2 files.*a-Q4_0\.gguf, b-Q4_0\.gguf"):
        select_files(HubReference("o/r", "Q4_0"), ["a-Q4_0.gguf", "b-Q4_0.gguf", "a-Q8_0.gguf"])


def test_a_whole_file_name_settles_an_ambiguity() -> None:
    assert select_files(HubReference("o/r", "b-Q4_0.gguf"), ["a-Q4_0.gguf", "b-Q4_0.gguf"]).entry == "b-Q4_0.gguf"


def test_without_a_quantisation_several_gguf_files_are_ambiguous() -> None:
    with pytest.raises(LoadError, match=r"o/r matches 4 files; name one as o/r:QUANT"):
        select_files(HubReference("o/r"), GGUF_REPO)


def test_without_a_quantisation_the_only_gguf_is_taken() -> None:
    assert select_files(HubReference("o/r"), ["README.md", "mmproj-x.gguf", "x.gguf"]).files == ("x.gguf",)


def test_a_split_set_with_a_missing_part_is_refused() -> None:
    with pytest.raises(LoadError, match=r"only 1 of the 3 parts"):
        select_files(HubReference("o/r", "Q8_0"), ["m-Q8_0-00001-of-00003.gguf"])


def test_a_safetensors_repository_gives_weights_config_and_tokenizer_only() -> None:
    selection = select_files(HubReference("o/r"), SAFETENSORS_REPO)
    assert selection.entry == "."
    assert set(selection.files) == {
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    }


def test_a_repository_without_a_model_is_refused_with_what_it_has() -> None:
    with pytest.raises(LoadError, match=r"neither GGUF .* it has README\.md, weights\.bin"):
        select_files(HubReference("o/r"), ["weights.bin", "README.md"])


@pytest.mark.parametrize(
    "name", ["../x-Q4_0.gguf", "/etc/x-Q4_0.gguf", "a/../../x-Q4_0.gguf", "a\\x-Q4_0.gguf", "c:x-Q4_0.gguf"]
)
def test_a_file_name_that_leads_elsewhere_is_never_selected(name: str) -> None:
    with pytest.raises(LoadError, match="neither GGUF"):
        select_files(HubReference("o/r", "Q4_0"), [name])


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("owner/name", HubReference("owner/name")),
        ("owner/name-GGUF:Q4_K_M", HubReference("owner/name-GGUF", "Q4_K_M")),
        ("name", None),
        ("owner/name:", None),
        ("owner/../name", None),
        ("../name", None),
        ("a/b/c", None),
        ("owner/na me", None),
        ("owner/name\n", None),
        ("", None),
    ],
)
def test_hub_references_are_told_from_other_names(name: str, reference: HubReference | None) -> None:
    assert HubReference.parse(name) == reference
