"""Requests that wait for their grammar, before they wait for anything else. Compiles nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from octavo.engine.events import Fault
from octavo.engine.fault_text import cause_of
from octavo.errors import InvalidGrammar, InvalidRequest
from octavo.grammar.compiler import CompiledGrammar, GrammarCompiler
from octavo.grammar.matcher import GrammarMatcher
from octavo.request import Request

WAIT_S = 0.005  # for grammars when there is nothing else to do: how late a new command may then be seen


@dataclass(frozen=True, slots=True)
class _Held:
    future: Future[CompiledGrammar]
    go_on: Callable[[GrammarMatcher], None]
    priority: int


class GrammarQueue:
    """Used by the engine's thread."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def prepare(self) -> None:
        """Do now, rather than while others run, what the first grammar needs. Holds the GIL for up to a second."""
        if self._compiler.is_possible:
            self._compiler.prepare()

    @property
    def priorities(self) -> list[int]:
        """Of the requests that wait here."""
        return [held.priority for held in self._held.values()]

    def add(self, request: Request, go_on: Callable[[GrammarMatcher], None]) -> None:
        """Call `go_on` with the request's matcher: at once if its grammar is known, else from `settle`.

        Raises `InvalidGrammar` if the grammar is known to be unsound, `InvalidRequest` if the id is in use, and what
        `go_on` does; then nothing waits.
        """
        assert request.params.grammar is not None, "the request has no grammar"
        if request.request_id in self._held:
            raise InvalidRequest(f"request id {request.request_id!r} is in use; choose another")
        future = self._compiler.compile(request.params.grammar)
        error = future.exception() if future.done() else None
        if isinstance(error, InvalidRequest):
            raise InvalidGrammar(str(error))
        if future.done() and error is None:
            go_on(future.result().matcher())
        else:
            self._held[request.request_id] = _Held(future, go_on, request.priority)

    def remove(self, request_id: str) -> bool:
        """Forget a request; False if it does not wait here. If nobody else waits for its grammar, and no worker has
        begun with it, it is not compiled: those who leave at once would have all others stand behind what they left.
        """
        held = self._held.pop(request_id, None)
        if held is None:
            return False
        if all(other.future is not held.future for other in self._held.values()):
            held.future.cancel()
        return True

    def settle(self, *, idle: bool) -> list[tuple[str, str, Fault]]:
        """Send on all whose grammar is ready. Returns those that cannot go on, and why: `remove` them.

        Waits a little if `idle`.
        """
        if not self._held:
            return []
        if idle:
            wait({held.future for held in self._held.values()}, WAIT_S, FIRST_COMPLETED)
        refused: list[tuple[str, str, Fault]] = []
        for request_id, held in list(self._held.items()):
            if not held.future.done():
                continue
            try:
                held.go_on(held.future.result().matcher())
                del self._held[request_id]
            except InvalidRequest as error:
                refused.append((request_id, str(error), "invalid_grammar"))
            except Exception as error:  # noqa: BLE001 - whatever the compiler met ends this request alone
                refused.append((request_id, f"the grammar could not be compiled: {cause_of(error)}", "fault"))
        return refused
