"""What shapes the server, given once by the command line. It knows nothing of the engine's own configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from octavo.engine.profile import ProfileSettings
from octavo.errors import InvalidRequest, shown
from octavo.server.parsers.forms import FORMS
from octavo.server.parsers.reasoning import THINKING

MIB = 1 << 20
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")  # as browsers send it: in lower case
_KEY = re.compile(r"[^\s\x00-\x1f\x7f]+")  # what a header can carry as one word


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Validated at construction: `InvalidRequest` names the flag, the value, the limit and the remedy.

    Times are seconds, sizes bytes. `port` 0 takes any free one. `model_names` are what clients may call the model,
    the first of which answers carry; empty for the engine's own name. A request's own `timeout` fields do not exist:
    `request_timeout_s` and `queue_timeout_s` hold for all, None for no limit. `body_timeout_s` is how long a request
    may take to arrive, `drain_timeout_s` how long running ones may go on once the server ends. A stream that has
    nothing to say for `keep_alive_s` sends a comment. `max_choices` bounds `n` times prompts of a request,
    `max_prompts` the prompts. `tool_parser` and `reasoning_parser` name the form in which the model writes calls and
    thinking; `auto` is what its chat template shows. Spans of calls are posted to `traces_url`, None for none.
    `profiles` is where /start_profile has profiles written; None for no such route.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # a key is never shown
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    model_names: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: str = "text"
    metrics: bool = True
    page: bool = True
    root_path: str = ""
    exit_on_failure: bool = False
    request_timeout_s: float | None = None
    queue_timeout_s: float | None = None
    body_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    keep_alive_s: float = 15.0
    max_body_bytes: int = 16 * MIB
    max_choices: int = 128
    max_prompts: int = 128
    max_connections: int = 4096
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    traces_url: str | None = None
    profiles: ProfileSettings | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidRequest(f"--port is {self.port}; it must be from 0 (any free one) to 65535")
        if not self.host or self.host != self.host.strip():
            raise InvalidRequest(f"--host is {shown(self.host)}; give an address or a name, such as 127.0.0.1")
        for key in self.api_keys:
            if not _KEY.fullmatch(key):
                raise InvalidRequest(
                    f"an API key of {len(key)} characters is empty or has white space or control characters in it; "
                    "give one word"
                )
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = ("--tls-key", "--tls-cert") if self.tls_key is None else ("--tls-cert", "--tls-key")
            raise InvalidRequest(f"{given} is given without {missing}; TLS needs both")
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise InvalidRequest(
                    f"--cors-origin is {shown(origin)}; give scheme, host and port, such as https://page.example or "
                    "http://localhost:3000, in lower case and without a path, or * for any"
                )
        if any(not name.strip() for name in self.model_names):
            raise InvalidRequest("--served-model-name is empty; give the name that clients send as model")
        for name, value, allowed in (
            ("--log-level", self.log_level, LOG_LEVELS),
            ("--log-format", self.log_format, LOG_FORMATS),
            ("--tool-parser", self.tool_parser, ("auto", *FORMS)),
            ("--reasoning-parser", self.reasoning_parser, ("auto", "none", *THINKING)),
        ):
            if value not in allowed:
                raise InvalidRequest(f"{name} is {shown(value)}; choose one of {', '.join(allowed)}")
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII):
            raise InvalidRequest(
                f"--root-path is {shown(self.root_path)}; it must look like /prefix, without / at its end"
            )
        for name in ("request_timeout_s", "queue_timeout_s", "body_timeout_s", "keep_alive_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= 1e9:
                flag = "--" + name.removesuffix("_s").replace("_", "-")
                raise InvalidRequest(f"{flag} is {seconds:g} seconds; it must be above 0, or absent for no limit")
        if not 0 <= self.drain_timeout_s <= 1e9:
            raise InvalidRequest(f"--drain-timeout is {self.drain_timeout_s:g} seconds; it must be at least 0")
        for name in ("max_body_bytes", "max_choices", "max_prompts", "max_connections"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name.replace('_', ' ')} is {getattr(self, name)}; it must be at least 1")
