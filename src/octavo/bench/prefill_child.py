"""One process of `octavo bench prefill`: loads a model, prints {}, then answers prompts with how fast they were.

python -m octavo.bench.prefill_child SETTINGS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from octavo.bench.peer_child import peak_bytes
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.loaded_model import load_model, plan_model
from octavo.errors import OctavoError
from octavo.llm import LLM
from octavo.sampling_params import SamplingParams


def main() -> None:
    """Serve the settings that the argument holds."""
    settings = json.loads(sys.argv[1])
    config = EngineConfig(**settings["config"])
    try:
        llm = LLM.over(EngineCore(load_model(plan_model(Path(settings["model"]), config), config), config))
        print("{}", flush=True)
        for line in sys.stdin:
            found = {"prefill_tps": prefill_tps(llm, json.loads(line)["prompts"])}
            print(json.dumps({**found, "peak_bytes": peak_bytes()}), flush=True)
    except OctavoError as error:
        sys.exit(f"octavo: error: {error}")


def prefill_tps(llm: LLM, prompts: list[list[int]]) -> list[float]:
    """Prompt tokens/s up to the first token, one prompt after the other; the first warms up and is left out."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    return [llm.generate([tuple(prompt)], params)[0].timings.prefill_tps for prompt in prompts][1:]


if __name__ == "__main__":
    main()
