"""What a factory of engines returns to the process or thread that will run one. Imports no torch."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from octavo.engine.engine_loop import SteppedCore
from octavo.engine.serving import ModelInfo
from octavo.engine.step_meter import StepMeter
from octavo.engine.wire import Loaded
from octavo.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """An engine, and what a server has to know of it. At most `max_num_seqs` requests run at once."""

    core: SteppedCore
    tokenizer: Tokenizer
    info: ModelInfo
    max_num_seqs: int

    def loaded(self) -> Loaded:
        """What the engine says once it takes requests."""
        return Loaded(self.info, pickle.dumps(self.tokenizer), self.max_num_seqs, StepMeter().stats(self.core))
