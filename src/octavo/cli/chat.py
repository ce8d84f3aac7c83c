"""`octavo chat`: a conversation in the terminal. Answers go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.errors import print_error
from octavo.cli.generate import stream_to_stdout
from octavo.cli.message_reader import Message, is_interactive, read_message
from octavo.cli.options import option
from octavo.errors import InvalidRequest, OctavoError
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.loaded_model import ModelPlan
    from octavo.llm import LLM
    from octavo.tokenizer import Tokenizer

HELP = """\
/reset    forget the conversation (the system message stays)
/system T set the system message to T and forget the conversation
/exit     leave (also Ctrl-D)
A line that ends in a backslash goes on in the next one. Lines between two lines of three quotes are one message.
Ctrl-C stops the answer; at the prompt it leaves."""
_LEAVE = ("/exit", "/quit", "/bye")
_ROOM = 64  # tokens that an answer must have room for before old turns are dropped


@flags.with_engine_flags()
def chat(
    *,
    model: flags.Model = None,
    system: Annotated[str | None, option("--system", help="System message.")] = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = 0.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    engine: flags.EngineFlags,
    force: flags.Force = False,
) -> None:
    """Talk with a model. At the context limit the oldest turns are dropped, and a line says so."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=flags.stop_strings(stop),
    )
    if engine.storage == "auto":
        # Each turn begins with all that was said before, which paged storage has at hand.
        engine = replace(engine, storage="paged")
    config = engine.config(1, force=force)
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed; a conversation reads its messages from it")
    llm = flags.load(model, config, _check_template)
    if is_interactive():
        _note("type a message; /help lists the commands")
    status = converse(Conversation(llm, params, system))
    if status and not is_interactive():
        raise typer.Exit(status)


def _check_template(plan: ModelPlan, tokenizer: Tokenizer) -> None:
    if tokenizer.chat_template is None:
        raise InvalidRequest(f"{plan.checkpoint.path.name} has no chat template; use octavo generate --raw")


def converse(conversation: Conversation) -> int:
    """Handle messages until the input or the user ends it; returns the exit status of the last one that failed, or 0.

    A message that fails is told, and the conversation goes on.
    """
    status = 0
    while True:
        try:
            message = read_message()
            if message is None:
                break
            if message.text.strip() and not conversation.handle(message):
                return status
        except OctavoError as error:
            print_error(str(error))
            status = error.exit_status
        except KeyboardInterrupt:
            _end_line()
            raise
    _end_line()
    return status


def _end_line() -> None:
    """Leave the line of a prompt that was not answered."""
    if is_interactive():
        _note("")


class Conversation:
    """The turns so far. A message that fails, or is stopped before its answer begins, leaves them as they were."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._turns: list[dict[str, str]] = []

    def handle(self, message: Message) -> bool:
        """Carry out a command, or answer a message; False to leave. Raises what makes a message impossible."""
        command, _, argument = ("", "", "") if message.quoted else message.text.strip().partition(" ")
        if argument and command in (*_LEAVE, "/help", "/reset"):
            _note(f"{command} takes no argument, so nothing was done; for a message, put it between lines of quotes")
        elif command in _LEAVE:
            return False
        elif command == "/help":
            _note(HELP)
        elif command == "/reset":
            self._turns = []
            _note("the conversation was forgotten")
        elif command == "/system":
            self._system, self._turns = argument or None, []
            _note("the system message was set and the conversation forgotten" if argument else "no system message now")
        elif command.startswith("/") and command[1:].isalpha() and "\n" not in message.text:
            _note(f"{command} is not a command; /help lists them")
        else:
            self._answer(message.text)
        return True

    def _answer(self, message: str) -> None:
        turns = [*self._turns, {"role": "user", "content": message}]
        pieces: list[str] = []
        try:
            turns, prompt_ids = self._fit(turns)
            output = stream_to_stdout(self._llm, prompt_ids, self._params, on_text=pieces.append)
            if output.outputs[0].finish_reason == "length":
                _note("the answer was cut: it reached --max-tokens or the context limit")
        except KeyboardInterrupt:
            _note("stopped")
            if not any(pieces):
                return
        self._turns = [*turns, {"role": "assistant", "content": "".join(pieces)}]

    def _fit(self, turns: list[dict[str, str]]) -> tuple[list[dict[str, str]], tuple[int, ...]]:
        """Drop the oldest exchanges until the prompt and a short answer fit the context."""
        limit = self._llm.max_context
        prompt_ids = self._encode(turns)
        dropped = 0
        while len(prompt_ids) + min(_ROOM, limit // 4) > limit and len(turns) > 2:
            turns = turns[2:]
            dropped += 1
            prompt_ids = self._encode(turns)
        if len(prompt_ids) >= limit:
            raise InvalidRequest(
                f"the message makes a prompt of {len(prompt_ids)} tokens and the context holds {limit}; shorten it"
            )
        if dropped:
            _note(f"the context of {limit} tokens is full: the oldest {dropped} exchange(s) were dropped")
        return turns, prompt_ids

    def _encode(self, turns: list[dict[str, str]]) -> tuple[int, ...]:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return tuple(self._llm.tokenizer.encode_chat([*system, *turns]))


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
