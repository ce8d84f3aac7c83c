"""The helpers of all server tests lie one folder up, those of tools beside this one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tools")]
