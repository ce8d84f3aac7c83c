"""The scripts of examples/ on one page, so that they can be read where they are explained."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts.reference.markdown import page

ORDER = (
    *("generate", "structured_output", "save_conversation", "batch_file"),
    *("streaming_chat", "tool_loop", "embeddings_search", "prefix_sharing"),
)


def examples_page(directory: Path) -> str:
    """`directory` holds the scripts."""
    parts = [
        "Each is a script in `examples/` with one purpose; its `--help` shows the arguments. Those that ask a server "
        "need OpenAI's client (`pip install openai`) where they run. `tests/examples` runs them all as processes."
    ]
    for name in ORDER:
        source = (directory / f"{name}.py").read_text(encoding="utf-8")
        summary = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
        parts += [f"## {name}.py", " ".join(summary.split()), f"```python\n{source.rstrip()}\n```"]
    return page("Examples", *parts)
