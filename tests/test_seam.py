"""The seam: models and layers know nothing of storage, and storage alone knows the attention kernels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent
ABOVE = sorted(path for part in ("models", "layers") for path in (ROOT / part).rglob("*.py"))
STORAGE_WORDS = re.compile(
    r"\b(octavo\.storage|StorageKind|StorageChoice|KVCache|is_paged|is_dense|supports_ring|block_table|slot_mapping)\b"
)
KINDS = ("dense", "ring", "paged", "gather")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    """Full names of modules, and of what is taken from them, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def code_words(path: Path) -> set[str]:
    """Identifiers and strings of the code, without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            words.add(node.value)
    return words


@pytest.mark.parametrize("path", ABOVE, ids=name_of)
def test_no_model_or_layer_mentions_where_keys_and_values_lie(path):  # requirement S1
    assert not STORAGE_WORDS.findall(path.read_text(encoding="utf-8"))
    assert not any(name.startswith("octavo.storage") for name in imported(path))
    words = code_words(path)
    assert not {word for word in words if word.lower() in KINDS}
    # `supports_paged` is what a family declares, and what it may say about storage.
    assert not {word for word in words if "paged" in word.lower()} - {"supports_paged"}


def test_models_and_layers_were_found():
    assert {"models/llama.py", "models/gemma3.py", "layers/attention.py"} <= set(map(name_of, ABOVE))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=name_of)
def test_the_attention_kernels_are_imported_by_storage_alone(path):
    part = path.relative_to(ROOT).parts[0]
    used = {name for name in imported(path) if "attend_span" in name or "plan_span" in name}
    assert part in ("storage", "kernels") or not used


@pytest.mark.parametrize(
    ("name", "callers"),
    [("attend_qkv", ["layers/attention.py"]), ("attend", ["parity/masked_forward.py", "storage/kv_cache.py"])],
)
def test_attend_is_called_in_one_place_and_defined_in_one(name, callers):
    """One attention layer serves every family, and one method serves every storage. Its sibling, which takes heads as
    they were projected, is `attend` after their rotation, where no kernel does both.
    """
    calls, definitions = [], []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
                calls.append(name_of(path))
            if isinstance(node, ast.FunctionDef) and node.name == name:
                definitions.append(name_of(path))
    assert calls == callers
    # The protocol that layers see, the reference that a proof runs models over, and the storage.
    protocol = ["layers/attention.py"] if name == "attend_qkv" else []
    assert definitions == [*protocol, "parity/masked_forward.py", "storage/kv_cache.py"]


def test_routes_are_counted_by_the_cache_alone():
    """The command line and Python read the same counters, so neither can take a way of its own (requirement S3)."""
    callers = {
        name_of(path)
        for path in ROOT.rglob("*.py")
        if any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func).endswith("routes.add")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert callers == {"storage/kv_cache.py"}
    readers = {name_of(path) for path in ROOT.rglob("*.py") if ".routes.by_route()" in path.read_text(encoding="utf-8")}
    assert readers == {"bench/routes.py", "llm.py"}
