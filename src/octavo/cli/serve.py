"""`octavo serve`: an OpenAI-compatible server over one model. The address is taken before the model is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.options import list_option, option, texts
from octavo.engine.profile import DEFAULT_STEPS, ProfileSettings
from octavo.errors import InvalidRequest

DEFAULT_PARALLEL = 8

Host = Annotated[str, option("--host", help="Address or name to listen on; 0.0.0.0 or :: for all of this machine's.")]
Port = Annotated[int, option("--port", help="Port to listen on; 0 takes any free one.")]
Parallel = Annotated[int, option("--parallel", help="Sequences that may run at once.")]
MaxQueue = Annotated[int, option("--max-queue", help="Most requests that may wait; one more is answered 429.")]
ApiKey = Annotated[
    list[str] | None,
    list_option("--api-key", help="Ask clients for this key; may be given several times. Others may see it in `ps`."),
]
ApiKeyFile = Annotated[Path | None, option("--api-key-file", help="Ask for one of the keys in this file, one a line.")]
CorsOrigin = Annotated[
    list[str] | None,
    list_option("--cors-origin", help="Let pages of this origin use the server, * for any; several times."),
]
TlsCert = Annotated[Path | None, option("--tls-cert", help="Serve HTTPS with this PEM certificate (and chain).")]
TlsKey = Annotated[Path | None, option("--tls-key", help="The certificate's PEM key, without a password.")]
ServedModelName = Annotated[
    list[str] | None,
    list_option("--served-model-name", help="What clients call the model, in place of its own name; several times."),
]
LogLevel = Annotated[str, option("--log-level", help="debug, info, warning or error.")]
LogFormat = Annotated[str, option("--log-format", help="text, or json: one object a line.")]
RequestTimeout = Annotated[float | None, option("--request-timeout", help="Seconds that a request may take in all.")]
QueueTimeout = Annotated[float | None, option("--queue-timeout", help="Seconds that a request may wait to begin.")]
Metrics = Annotated[bool, option("--metrics/--no-metrics", help="Show counters for Prometheus at /metrics.")]
Page = Annotated[bool, option("--page/--no-page", help="Show a chat, and the machine at work, at /.")]
RootPath = Annotated[str, option("--root-path", help="Prefix under which a proxy shows the server, such as /llm.")]
DrainTimeout = Annotated[
    float, option("--drain-timeout", help="Seconds that running requests may go on once the server is told to end.")
]

ExitOnFailure = Annotated[
    bool,
    option("--exit-on-failure", help="End, with status 1, when the engine has failed, for a supervisor to restart."),
]
ToolParser = Annotated[
    str,
    option("--tool-parser", help="Form in which the model calls tools; auto is what its chat template shows."),
]
ReasoningParser = Annotated[
    str,
    option(
        "--reasoning-parser", help="Markers around the model's thinking; auto is by its chat template, none is off."
    ),
]
OtlpEndpoint = Annotated[
    str | None,
    option("--otlp-endpoint", help="Send OpenTelemetry traces to this collector, such as http://127.0.0.1:4318."),
]


@flags.with_engine_flags()
def serve(
    *,
    model: flags.Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    parallel: Parallel = DEFAULT_PARALLEL,
    max_queue: MaxQueue = 256,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    api_key: ApiKey = None,
    api_key_file: ApiKeyFile = None,
    cors_origin: CorsOrigin = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    served_model_name: ServedModelName = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    request_timeout: RequestTimeout = None,
    queue_timeout: QueueTimeout = None,
    metrics: Metrics = True,
    page: Page = True,
    root_path: RootPath = "",
    drain_timeout: DrainTimeout = 30.0,
    exit_on_failure: ExitOnFailure = False,
    tool_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    otlp_endpoint: OtlpEndpoint = None,
    profile: flags.ProfileDirectory = None,
    profile_steps: flags.ProfileSteps = DEFAULT_STEPS,
) -> None:
    """Serve one model to OpenAI clients. SIGTERM or Ctrl-C lets running requests end; a second one does not."""
    # Whatever can be wrong is found before the address is taken, and that before anything heavy is imported.
    from octavo.server.key_file import read_key_file
    from octavo.server.listener import check_tls, listen
    from octavo.server.settings import ServerSettings
    from octavo.server.tracing.endpoint import traces_url

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=texts(api_key, "--api-key") + (read_key_file(api_key_file) if api_key_file else ()),
        cors_origins=texts(cors_origin, "--cors-origin"),
        tls_cert=tls_cert,
        tls_key=tls_key,
        model_names=texts(served_model_name, "--served-model-name"),
        log_level=log_level,
        log_format=log_format,
        metrics=metrics,
        page=page,
        root_path=root_path,
        request_timeout_s=request_timeout,
        queue_timeout_s=queue_timeout,
        drain_timeout_s=drain_timeout,
        exit_on_failure=exit_on_failure,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        traces_url=traces_url(otlp_endpoint, os.environ),
        profiles=ProfileSettings.of(profile, profile_steps),
    )
    if parallel < 1:
        raise InvalidRequest(f"--parallel is {parallel}; it must be at least 1")
    config = engine.config(parallel, force=force)
    if tls_cert and tls_key:
        check_tls(tls_cert, tls_key)
    with listen(host, port) as listener:
        from octavo.engine.async_client import ProcessEngine, ServingLimits
        from octavo.server import serve as server
        from octavo.server.logs import configure_logs
        from octavo.store import TerminalProgress, resolve_model

        limits = ServingLimits(max_queue=max_queue)
        path = resolve_model(model, progress=TerminalProgress())
        configure_logs(log_level, log_format)
        name = settings.model_names[0] if settings.model_names else served_name(model, path)
        status = server.serve(ProcessEngine.for_model(path, config, name, limits), settings, listener)
    if status:
        raise typer.Exit(status)


def served_name(model: str | None, path: Path) -> str:
    """What clients call a model that was given no name: the alias or repository asked for, else the file's name."""
    from octavo.store.aliases import ALIASES, DEFAULT_ALIAS
    from octavo.store.names import local_path

    asked = DEFAULT_ALIAS if model is None else model
    if asked in ALIASES or not local_path(asked):
        return asked
    path = path.resolve()
    return path.stem if path.suffix == ".gguf" else path.name
