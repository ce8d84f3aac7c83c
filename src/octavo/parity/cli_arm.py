"""The command line as a parity arm: the same prompt through `octavo generate` in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan
from octavo.environment import child_environment
from octavo.parity.child_command import child_command
from octavo.parity.trace import Trace


def trace_cli(
    plan: ModelPlan, config: EngineConfig, prompt: str, prompt_token_ids: Sequence[int], num_tokens: int
) -> Trace:
    """Greedy tokens of `prompt`, dense; logits stay in the process. `prompt_token_ids` are what it must encode to."""
    settings = {"--prompt": prompt, "--max-tokens": num_tokens, "--storage": "dense"}
    command = child_command(plan, config, "generate", settings, "--json", "--raw", "--ignore-eos")
    done = subprocess.run(
        command, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        return Trace(problem=f"octavo generate ended with status {done.returncode}: {said}")
    answer = json.loads(done.stdout)
    problem = None
    if answer["prompt_token_ids"] != list(prompt_token_ids):
        problem = "octavo generate encoded the prompt differently"
    return Trace(answer["token_ids"], [], answer["routes"], problem)
