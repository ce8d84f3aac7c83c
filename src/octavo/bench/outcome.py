"""How a measurement ended: whole, or why not and where. Measures nothing."""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from types import TracebackType

from octavo.errors import EngineFault, OctavoError


@dataclass(slots=True)
class Outcome:
    """A context manager around what measures: `problem` is None once that came to its end.

    `where` is what is measured at the moment, as arm and round. What ends it early is raised on; an error of ours as
    an `EngineFault` that says where, with the exit status that it had.
    """

    where: str = ""
    problem: str | None = "nothing was measured"

    @property
    def complete(self) -> bool:
        return self.problem is None

    def as_object(self) -> dict[str, object]:
        return {"complete": self.complete, "problem": self.problem}

    def lines(self) -> list[str]:
        """What a table begins with: nothing if all of it is there."""
        return [] if self.complete else [f"INCOMPLETE: {self.problem}"]

    def __enter__(self) -> Outcome:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.problem = None
            return
        said = " ".join(f"{error}".split()) or kind.__name__
        if issubclass(kind, KeyboardInterrupt | SystemExit | CancelledError):  # as an interrupt reaches a coroutine
            said = "interrupted"
        self.problem = f"{self.where}: {said}" if self.where else said
        if self.where and isinstance(error, OctavoError):
            fault = EngineFault(self.problem)
            fault.exit_status = error.exit_status
            raise fault from error
