"""Every exception that Octavo raises on purpose, and what each means to a caller.

    OctavoError
    ├── InvalidRequest   the caller asked for something that cannot be   (HTTP 400, exit 2)
    │   ├── InvalidGrammar  a form that no answer can be held to         (HTTP 400, exit 2)
    │   └── PromptTooLong   more tokens than were to be made of it       (HTTP 400, exit 2)
    ├── CapacityError    cannot be served now, or ever, for lack of room (HTTP 400/503, exit 2)
    │   ├── QueueFull    too many wait already                           (HTTP 429)
    │   └── NotReady     the engine loads or has failed                  (HTTP 503)
    │       └── ShuttingDown   it drains or has ended                    (HTTP 503)
    ├── LoadError        a model or tokenizer file cannot be used        (exit 2)
    └── EngineFault      a fault of ours while serving a request         (HTTP 500, exit 1)

A message is one line that names the value, the limit and the remedy.
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of all deliberate errors. `str(error)` is one line fit for a person."""

    exit_status = 1


class InvalidRequest(OctavoError):
    """The request itself is at fault; repeating it unchanged cannot succeed."""

    exit_status = 2


class InvalidGrammar(InvalidRequest):
    """The schema, regex, list of choices or grammar that the answer was to be held to cannot be used."""


class PromptTooLong(InvalidRequest):
    """A text of which at least `num_tokens` tokens would be made."""

    def __init__(self, num_tokens: int, most: int) -> None:
        super().__init__(f"the prompt has at least {num_tokens} tokens; shorten it to at most {most}")
        self.num_tokens = num_tokens


class CapacityError(OctavoError):
    """The request is sound but does not fit the memory that was set aside."""

    exit_status = 2


class QueueFull(CapacityError):
    """As many requests wait as may; one that comes later can be served."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReady(CapacityError):
    """The engine does not take requests: it still loads, is ending, or has failed."""


class ShuttingDown(NotReady):
    """The engine takes no new requests any more."""


class LoadError(OctavoError):
    """A model, tokenizer or configuration file is missing, broken or unsupported."""

    exit_status = 2


class EngineFault(OctavoError):
    """A fault inside the engine; the affected request ends, others go on."""


def shown(value: object) -> str:
    """`value` for an error message: on one line and short, whatever it is."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > 40:
        return f"{value[:40]!r}…"
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
