"""The proof of "same input, same output": runs every route on one model and compares tokens and logits."""

from octavo.parity.arms import ARMS, check_arm
from octavo.parity.report import ArmResult, Report
from octavo.parity.runner import run_parity

__all__ = ["ARMS", "ArmResult", "Report", "check_arm", "run_parity"]
