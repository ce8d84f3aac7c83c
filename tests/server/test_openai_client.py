"""The official OpenAI client, and LangChain's over it, against a real server process with a tiny random model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo.llm import LLM
from octavo.request import POOLINGS, Pooling
from octavo.sampling_params import SamplingParams
from tests.tiny_models import save_hf

HI: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}
START_S = 120.0
KEY = "sk-test"


@dataclass(frozen=True)
class Server:
    url: str
    model: Path

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": KEY, "max_retries": 0, **options})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("served")
    save_hf(directory / "tiny", "llama")
    command = [sys.executable, "-m", "octavo", "serve", "-m", str(directory / "tiny"), "--port", "0"]
    command += ["--dtype", "float32", "--threads", "1", "--api-key", KEY, "--parallel", "4"]
    log = directory / "log"
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment)
    try:
        yield Server(_ready(process, log), directory / "tiny")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def _ready(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"ready: .* at (http://\S+)/v1", log.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server is not ready: {log.read_text()}")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"


def test_a_chat_and_its_stream_are_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=HI, **GREEDY)
    choice = whole.choices[0]
    assert choice.finish_reason in ("stop", "length") and choice.message.role == "assistant"
    assert whole.usage is not None and 1 <= whole.usage.completion_tokens <= 12
    assert whole.id.startswith("chatcmpl-") and whole.system_fingerprint
    chunks = list(
        client.chat.completions.create(messages=HI, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == choice.finish_reason
    usage = chunks[-1].usage
    assert usage is not None and chunks[-1].choices == []
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_the_clients_own_stream_helper_gathers_the_same_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=HI, **GREEDY).choices[0]
    with client.chat.completions.stream(messages=HI, **GREEDY) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "content.delta") == whole.message.content
    assert [event.content for event in events if event.type == "content.done"] == [whole.message.content]


def test_chat_logprobs_have_the_clients_types(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(messages=HI, logprobs=True, top_logprobs=3, **GREEDY).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    raw = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
    assert raw.decode(errors="replace").startswith((choice.message.content or "").rstrip("\ufffd"))
    for entry in choice.logprobs.content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].bytes == entry.bytes  # greedy


def test_a_seed_repeats_and_n_differs(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"messages": HI, "model": "tiny", "max_tokens": 12, "n": 3, "seed": 7, "temperature": 1.5}
    first, again = (
        [choice.message.content for choice in client.chat.completions.create(**fields).choices] for _ in range(2)
    )
    assert first == again and len(set(first)) == 3


def test_completions_take_batches_ids_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(prompt=["The harbour", "A careful"], n=2, echo=True, logprobs=2, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(answer.choices, ["The harbour"] * 2 + ["A careful"] * 2, strict=True):
        assert choice.text.startswith(prompt) and choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None and choice.logprobs.text_offset is not None
        assert choice.logprobs.text_offset[0] == 0 and len(choice.logprobs.tokens or ()) == len(
            choice.logprobs.token_logprobs
        )
    assert answer.choices[0].text == answer.choices[1].text  # greedy
    ids = httpx.post(
        f"{str(client.base_url).removesuffix('/v1/')}/tokenize",
        json={"prompt": "The harbour"},
        headers={"authorization": f"Bearer {KEY}"},
    ).json()["tokens"]
    from_ids = client.completions.create(prompt=ids, **GREEDY)
    assert "The harbour" + from_ids.choices[0].text == answer.choices[0].text
    chunks = list(client.completions.create(prompt=ids, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == from_ids.choices[0].text


def test_scores_over_http_agree_with_the_offline_api(server: Server, client: openai.OpenAI) -> None:
    """What an evaluation harness does: the log-probability of a continuation, without generating anything."""
    llm = LLM(server.model, dtype="float32", threads=1, max_num_seqs=1)
    offline = llm.generate("The harbour", SamplingParams(max_tokens=12, logprobs=0))[0]
    prompt, output = list(offline.prompt_token_ids), offline.outputs[0]
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 0, "echo": True, "logprobs": 1}
    scored = client.completions.create(prompt=[*prompt, *output.token_ids], **fields).choices[0]
    assert scored.logprobs is not None and scored.logprobs.token_logprobs is not None
    assert scored.finish_reason == "length" and scored.logprobs.token_logprobs[0] is None
    expected = [each.logprob for each in output.logprobs or ()]
    assert scored.logprobs.token_logprobs[len(prompt) :] == pytest.approx(expected, abs=1e-4)
    again = client.completions.create(prompt=[*prompt, *output.token_ids], n=2, **fields).choices
    assert [choice.logprobs for choice in again] == [scored.logprobs] * 2  # with a cached prefix or without


def test_the_async_client_runs_many_at_once(server: Server) -> None:
    async def scenario() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

            async def stream(prompt: str) -> str:
                chunks = await client.completions.create(prompt=prompt, stream=True, **GREEDY)
                return "".join([chunk.choices[0].text async for chunk in chunks])

            prompts = [f"Number {index} of" for index in range(6)]
            alone = [await stream(prompt) for prompt in prompts]
            assert await asyncio.gather(*map(stream, prompts)) == alone

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: Server, stream: bool) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    generated = _counter(server, headers)
    fields: dict[str, Any] = {**GREEDY, "max_tokens": 500, "n": 4, "extra_body": {"ignore_eos": True}}
    with server.client() as client:
        if stream:
            with client.completions.create(prompt="On and on", stream=True, **fields) as chunks:
                next(iter(chunks))
        else:
            with pytest.raises(openai.APITimeoutError):
                client.completions.create(prompt="On and on", timeout=0.3, **fields)
    end = time.monotonic() + 10
    while True:
        groups = httpx.get(f"{server.url}/v1/cache/stats", headers=headers).json()["groups"]
        if all(group["live"] == 0 for group in groups):
            break
        assert time.monotonic() < end, groups
        time.sleep(0.05)
    assert _counter(server, headers) - generated < 4 * 500  # it did not run to its end


def _counter(server: Server, headers: dict[str, str]) -> float:
    page = httpx.get(f"{server.url}/metrics", headers=headers).text
    found = re.search(r"^octavo_generation_tokens_total (\S+)", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_errors_are_the_clients_own_exceptions(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(messages=HI, model="gpt-none")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(
            messages=HI, **GREEDY, tools=[{"type": "function", "function": {"name": "f"}}]
        )  # the tiny model's template knows none
    assert unsupported.value.param == "tools" and unsupported.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(prompt="word " * 600, **GREEDY)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError), client.chat.completions.create(messages=[], stream=True, **GREEDY):
        pass
    with server.client(api_key="sk-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_embeddings_are_those_of_the_engine_in_both_encodings(
    server: Server, client: openai.OpenAI, pooling: Pooling
) -> None:
    texts = ["The harbour", "a lamp by the door", "x"]
    llm = LLM(server.model, dtype="float32", threads=1, max_num_seqs=1)
    extra: dict[str, Any] = {"extra_body": {"pooling": pooling}}
    packed = client.embeddings.create(input=texts, model="tiny", **extra)  # the client asks for base64
    plain = client.embeddings.create(input=texts, model="tiny", encoding_format="float", **extra)
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-8)
    ids = [list(llm.encode(text)) for text in texts]
    assert client.embeddings.create(input=ids, model="tiny", **extra).data == packed.data
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == sum(map(len, ids))
    for dimensions in (None, 5):
        own = llm.embed(texts, pooling=pooling, dimensions=dimensions)
        asked: dict[str, Any] = {} if dimensions is None else {"dimensions": dimensions}
        served = client.embeddings.create(input=texts, model="tiny", **asked, **extra)
        for one, wanted in zip(served.data, own, strict=True):
            assert one.embedding == pytest.approx(wanted.embedding, abs=1e-5)
        assert [each.index for each in served.data] == [0, 1, 2]


def test_langchain_invokes_and_streams(server: Server) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key=KEY, temperature=0, max_tokens=12, max_retries=0
    )
    answer = model.invoke([("system", "Be brief."), ("human", "Say something.")])
    assert isinstance(answer.content, str) and answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] <= 12
    pieces = list(model.stream([("system", "Be brief."), ("human", "Say something.")]))
    assert "".join(str(piece.content) for piece in pieces) == answer.content
