"""Where traces are sent, if anywhere: the flag, else OpenTelemetry's own variables. Sends nothing."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from octavo.errors import InvalidRequest, shown

FLAG = "--otlp-endpoint"
BASE_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
TRACES_PATH = "/v1/traces"
REMEDY = "install it with `pip install 'octavo[otel]'`"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_log = logging.getLogger("octavo.server")


def traces_url(flag: str | None, environment: Mapping[str, str]) -> str | None:
    """The URL that spans are posted to; None to trace nothing.

    The flag and OTEL_EXPORTER_OTLP_ENDPOINT name a collector, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT the whole URL. Raises
    `InvalidRequest` for what is no URL, and for the flag where OpenTelemetry is not installed; variables, which may
    have been set for other programs, get a warning then.
    """
    if flag is not None:
        url = _below(_checked(flag, FLAG))
        if not _installed():
            raise InvalidRequest(f"{FLAG} is {shown(flag)}, but OpenTelemetry is not installed; {REMEDY}")
        return url
    for name in (TRACES_VARIABLE, BASE_VARIABLE):
        value = environment.get(name, "").strip()
        if not value:
            continue
        url = _checked(value, name)
        if not _installed():
            _log.warning("%s is set, but OpenTelemetry is not installed, so nothing is traced; %s", name, REMEDY)
            return None
        return url if name == TRACES_VARIABLE else _below(url)
    return None


def _checked(url: str, name: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise InvalidRequest(f"{name} is {shown(url)}; give a collector's URL, such as http://127.0.0.1:4318")
    return url


def _below(url: str) -> str:
    """Where a collector takes traces."""
    base = url.rstrip("/")
    return base if base.endswith(TRACES_PATH) else base + TRACES_PATH


def _installed() -> bool:
    try:
        importlib.import_module(_EXPORTER)
    except ModuleNotFoundError:
        return False
    return True
