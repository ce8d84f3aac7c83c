"""`octavo generate`: one completion. Standard output holds the text (or one JSON object) and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from octavo.cli import engine_options as flags
from octavo.cli.options import option
from octavo.cli.prompt import read_prompt
from octavo.engine.profile import DEFAULT_STEPS, ProfileSettings
from octavo.errors import InvalidRequest
from octavo.grammar_spec import GrammarSpec
from octavo.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.loaded_model import ModelPlan
    from octavo.llm import LLM
    from octavo.outputs import RequestOutput
    from octavo.storage.snapshot import KVSnapshot
    from octavo.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 512


@flags.with_engine_flags()
def generate(
    *,
    model: flags.Model = None,
    prompt: Annotated[str | None, option("-p", "--prompt", help="The prompt.")] = None,
    file: Annotated[Path | None, option("-f", "--file", help="Read the prompt from this file.")] = None,
    max_tokens: flags.MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: flags.Temperature = 0.0,
    top_k: flags.TopK = 0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    chat: Annotated[
        bool | None,
        option(
            "--chat/--raw", help="Through the chat template, or as it is (default: chat where there is a template)."
        ),
    ] = None,
    parse_special: Annotated[
        bool, option("--parse-special", help="Read control tokens in a raw prompt as such, not as text.")
    ] = False,
    engine: flags.EngineFlags,
    ignore_eos: flags.IgnoreEos = False,
    force: flags.Force = False,
    as_json: flags.AsJson = False,
    json_schema: Annotated[
        Path | None, option("--json-schema", help="The answer is JSON that the schema in this file accepts.")
    ] = None,
    save_cache: Annotated[
        Path | None, option("--save-cache", help="Save the K/V of prompt and answer to this file.")
    ] = None,
    load_cache: Annotated[
        Path | None, option("--load-cache", help="Start from K/V in this file, with which the prompt must begin.")
    ] = None,
    profile: flags.ProfileDirectory = None,
    profile_steps: flags.ProfileSteps = DEFAULT_STEPS,
) -> None:
    """Complete one prompt: from -p, from a file (-f), or standard input, taken verbatim."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=flags.stop_strings(stop),
        ignore_eos=ignore_eos,
        grammar=None if json_schema is None else _schema_in(json_schema),
    )
    config = engine.config(1, force=force)
    if parse_special and chat:
        raise InvalidRequest("--parse-special concerns raw prompts; give it with --raw, not with --chat")
    profiles = ProfileSettings.of(profile, profile_steps)
    text = read_prompt(prompt, file)
    from octavo.storage.snapshot import KVSnapshot, check_writable

    if save_cache is not None:
        check_writable(save_cache)
    snapshot = None if load_cache is None else KVSnapshot.load(load_cache)
    prompt_ids: tuple[int, ...] = ()

    def prepare(plan: ModelPlan, tokenizer: Tokenizer) -> None:
        nonlocal prompt_ids
        through_template = tokenizer.chat_template is not None and not parse_special if chat is None else chat
        prompt_ids = _encode(tokenizer, text, through_template, parse_special)
        if snapshot is not None:
            from octavo.engine.hand_off import check_start

            check_start(plan, snapshot, prompt_ids)

    llm = flags.load(model, config, prepare, exports=save_cache is not None)
    saved: list[KVSnapshot] = []
    on_snapshot = None if save_cache is None else saved.append
    if profiles is not None:
        llm.core.profiler.start(profiles)
    try:
        output = stream_to_stdout(llm, prompt_ids, params, silent=as_json, snapshot=snapshot, on_snapshot=on_snapshot)
    except InvalidRequest as error:
        if json_schema is None or not str(error).startswith("the JSON schema"):
            raise
        raise InvalidRequest(f"--json-schema {str(json_schema)!r}: {error}") from error
    finally:
        llm.core.profiler.stop()
    if as_json:
        print(json.dumps(as_object(llm, output), ensure_ascii=False))
    if save_cache is not None:
        saved[0].save(save_cache)


def _schema_in(path: Path) -> GrammarSpec:
    """The schema in a file. Raises `InvalidRequest` if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"--json-schema {str(path)!r} cannot be read ({error.strerror}); check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"--json-schema {str(path)!r} is not UTF-8 at byte {error.start}; save it as such"
        ) from error
    try:
        return GrammarSpec.json_schema(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"--json-schema {str(path)!r} {str(error).removeprefix('json_schema ')}") from error


def _encode(tokenizer: Tokenizer, text: str, chat: bool, parse_special: bool) -> tuple[int, ...]:
    if chat:
        return tuple(tokenizer.encode_chat([{"role": "user", "content": text}]))
    return tuple(tokenizer.encode(text, parse_special=parse_special))


def stream_to_stdout(
    llm: LLM,
    prompt_ids: tuple[int, ...],
    params: SamplingParams,
    *,
    silent: bool = False,
    on_text: Callable[[str], object] = lambda text: None,
    snapshot: KVSnapshot | None = None,
    on_snapshot: Callable[[KVSnapshot], object] | None = None,
) -> RequestOutput:
    """Print the text as it comes, and one newline at its end, also when it is interrupted.

    `on_text` gets each piece too; `silent` prints nothing; snapshots are as in `LLM.stream`.
    """
    from octavo.outputs import RequestOutput

    started = False
    try:
        for item in llm.stream(prompt_ids, params, snapshot=snapshot, on_snapshot=on_snapshot):
            if isinstance(item, RequestOutput):
                return item
            on_text(item.text)
            if not silent:
                started = True
                sys.stdout.write(item.text)
                sys.stdout.flush()
    finally:
        if started:
            sys.stdout.write("\n")
            sys.stdout.flush()
    raise AssertionError("a stream ends with its output")


def as_object(llm: LLM, output: RequestOutput) -> dict[str, Any]:
    """What `--json` prints."""
    completion = output.outputs[0]
    return {
        "model": llm.loaded.plan.checkpoint.path.name,
        "prompt_token_ids": list(output.prompt_token_ids),
        "token_ids": list(completion.token_ids),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "usage": asdict(output.usage),
        "timings": {name: round(value, 6) for name, value in asdict(output.timings).items()},
        "storage": output.storage,
        "routes": dict(output.routes),
    }
