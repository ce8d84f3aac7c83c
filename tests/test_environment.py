"""What importing `octavo` sets in the environment, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = "import os, octavo; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"


def said(program: str = PROGRAM, **given: str) -> str:
    unset = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment | given, capture_output=True, text=True, check=True
    )
    return answer.stdout.strip()


def test_idle_threads_of_openmp_soon_wait() -> None:
    assert said() == "None 2000"


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_environment_says_of_threads_is_left_alone(given: dict[str, str]) -> None:
    assert said(**given) == f"{given.get('OMP_WAIT_POLICY')} {given.get('GOMP_SPINCOUNT')}"


def test_nothing_is_set_where_it_would_come_too_late() -> None:
    assert said("import sys; sys.modules['torch'] = sys\n" + PROGRAM) == "None None"
