"""What the measured endpoint is and takes, found out by asking it once. Measures nothing."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import TracebackType
from typing import Any, Literal

import httpx

from octavo.bench.load_connection import Address, Exchange, LoadConnection
from octavo.bench.load_sse import error_message
from octavo.errors import CapacityError, InvalidRequest, shown

Api = Literal["completions", "chat"]
Prompt = str | list[int]
_PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_ABSENT = (404, 405, 501)  # how an endpoint says that it has no such route
_FIELD_REFUSED = (400, 422)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint: which API, model and optional fields requests to it use."""

    address: Address
    model: str
    api: Api = "completions"
    ignore_eos: bool = True
    include_usage: bool = True
    software: str | None = None

    @property
    def path(self) -> str:
        return _PATHS[self.api]

    def body(self, prompt: Prompt, max_tokens: int, *, stream: bool = True) -> bytes:
        """A greedy request. Token ids are for the completions API alone."""
        content: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, "stream": stream}
        if self.api == "chat":
            content["messages"] = [{"role": "user", "content": prompt}]
        else:
            content["prompt"] = prompt
        if self.ignore_eos:
            content["ignore_eos"] = True
        if stream and self.include_usage:
            content["stream_options"] = {"include_usage": True}
        return json.dumps(content, separators=(",", ":")).encode()

    def as_object(self) -> dict[str, object]:
        return {
            "url": str(self.address),
            "model": self.model,
            "api": self.api,
            "software": self.software,
            "ignore_eos": "sent" if self.ignore_eos else "refused; answers end where the model ends them",
            "include_usage": "sent" if self.include_usage else "refused; output tokens are counted as chunks",
        }


class EndpointControl:
    """Requests beside the load: model list, tokeniser, single probes. An async context manager."""

    def __init__(self, address: Address, api_key: str | None = None, timeout_s: float = 60) -> None:
        """Raises `InvalidRequest` for a key that no header can carry."""
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InvalidRequest("the api key has characters that no HTTP header takes; give printable ASCII")
        self.address = address
        self.headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._timeout = timeout_s
        # Asked as the load is sent: by no proxy that the environment names, and by OpenSSL's own certificates.
        self._http = httpx.AsyncClient(
            base_url=str(address),
            headers=self.headers,
            timeout=timeout_s,
            trust_env=False,
            verify=ssl.create_default_context() if address.scheme == "https" else False,
        )

    async def __aenter__(self) -> EndpointControl:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def connection(self) -> LoadConnection:
        return LoadConnection(self.address, self.headers, self._timeout)

    async def find(self, model: str | None, api: Api | None) -> Endpoint:
        """Ask which model and which optional fields it takes.

        Raises `CapacityError` if it cannot be reached, `InvalidRequest` if it refuses.
        """
        listed, software = await self._models(required=model is None)
        endpoint = Endpoint(self.address, model or listed[0], software=software)
        refusal = ""
        for wanted in (api,) if api is not None else _PATHS:
            found, exchange = await self._probe(replace(endpoint, api=wanted))
            if found is not None:
                return found
            refusal = refusal or f"{_PATHS[wanted]} answers {exchange.error}"
            if exchange.status not in _ABSENT:
                break
        known = f"; it lists {', '.join(map(shown, listed[:5]))}" if listed else ""
        raise InvalidRequest(f"{self.address} refuses a request of one token for model {model!r}: {refusal}{known}")

    async def alive(self) -> bool:
        """Whether it still answers, whatever it says."""
        try:
            await self._http.get("/v1/models", timeout=min(self._timeout, 10))
        except httpx.HTTPError:
            return False
        return True

    async def ready(self) -> bool:
        """Whether a server of ours takes requests by now."""
        try:
            return (await self._http.get("/ready")).is_success
        except httpx.HTTPError:
            return False

    async def routes(self) -> dict[str, Any]:
        """The storage of a server of ours, and how often attention took which route.

        Raises `CapacityError` if it cannot be reached, `InvalidRequest` if it does not say.
        """
        path = "/v1/internal/routes"
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise CapacityError(f"{self.address} stopped answering: {str(error) or type(error).__name__}") from error
        found = _json_object(response)
        if not response.is_success or found is None:
            raise InvalidRequest(f"{self.address}{path} answers HTTP {response.status_code}, so its storage is unknown")
        return found

    async def count(self, endpoint: Endpoint, prompt: Prompt) -> int | None:
        """Tokens of `prompt` as the endpoint counts them; None if it does not say or refuses the prompt."""
        answer = await self._post(endpoint.path, json.loads(endpoint.body(prompt, 1, stream=False)))
        usage = answer.get("usage") if answer is not None else None
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else None

    async def tokenize(self, endpoint: Endpoint, text: str) -> list[int] | None:
        """Token ids of `text` by the endpoint's own `/tokenize`; None if it has none that we know."""
        # Octavo and vLLM read `prompt`, llama.cpp reads `content`; each may refuse what the other reads.
        for body in ({"model": endpoint.model, "prompt": text}, {"content": text}):
            answer = await self._post("/tokenize", body)
            tokens = answer.get("tokens") if answer is not None else None
            if isinstance(tokens, list) and tokens and all(isinstance(each, int) for each in tokens):
                return tokens
        return None

    async def _probe(self, endpoint: Endpoint) -> tuple[Endpoint | None, Exchange]:
        """The endpoint with the most optional fields that it takes, or None; and how the last try went."""
        connection = self.connection()
        try:
            for include_usage, ignore_eos in product((True, False), repeat=2):
                tried = replace(endpoint, include_usage=include_usage, ignore_eos=ignore_eos)
                exchange = await connection.send(tried.path, tried.body("Hello", 1))
                if exchange.error is None:
                    return tried, exchange
                if exchange.unreachable:
                    raise CapacityError(f"{self.address} cannot be measured: {exchange.error}")
                if exchange.status not in _FIELD_REFUSED:
                    break
            return None, exchange
        finally:
            connection.close()

    async def _models(self, *, required: bool) -> tuple[list[str], str | None]:
        """Names of the models it lists, and the software that it says it is."""
        try:
            response = await self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise CapacityError(
                f"{self.address} cannot be reached ({str(error) or type(error).__name__}); start it, or check --url"
            ) from error
        found = _json_object(response)
        listed = found.get("data") if response.is_success and found is not None else None
        names = [each["id"] for each in listed if _has_id(each)] if isinstance(listed, list) else []
        if not names and required:
            said = f"HTTP {response.status_code}" + (f": {error_message(found)}" if found else "")
            remedy = "--api-key" if response.status_code in (401, 403) else "--model"
            raise InvalidRequest(f"{self.address}/v1/models lists no model ({said}); give {remedy}")
        return names, await self._software(response.headers.get("server"))

    async def _software(self, server: str | None) -> str | None:
        try:
            found = _json_object(await self._http.get("/version"))
        except httpx.HTTPError:
            found = None
        told = (server, *(found.get(name) for name in ("name", "version"))) if found is not None else (server,)
        parts: Sequence[str] = [part for part in told if isinstance(part, str)]
        return " ".join(parts) or None

    async def _post(self, path: str, body: object) -> dict[str, Any] | None:
        try:
            response = await self._http.post(path, json=body)
        except httpx.HTTPError as error:
            raise CapacityError(f"{self.address} stopped answering: {str(error) or type(error).__name__}") from error
        return _json_object(response) if response.is_success else None


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        found = response.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _has_id(entry: object) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str)
