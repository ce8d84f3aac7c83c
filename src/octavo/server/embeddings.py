"""/v1/embeddings: a vector of each input, all computed in one call of the engine."""

from __future__ import annotations

import base64
import logging
import struct
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from json.encoder import encode_basestring_ascii
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.engine.serving import ModelInfo
from octavo.outputs import shortened
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.server.errors import HttpError, fault_error, invalid
from octavo.server.prompts import check_prompts, check_texts, text_prompt
from octavo.server.protocol.embeddings import EmbeddingRequest
from octavo.server.protocol.parsing import parse
from octavo.server.state import ServerState
from octavo.server.streaming import while_connected

_log = logging.getLogger(__name__)


async def answer_embeddings(state: ServerState, body: dict[str, Any]) -> EmbeddingResponse:
    """The answer to the request that `body` is. Raises an `OctavoError` for one that cannot be served."""
    request = parse(EmbeddingRequest, body)
    model = state.check_model(request.model)
    info, tokenizer = state.ready_model()
    _check(request, info, state.settings.max_prompts)
    texts = [each for each in request.inputs if isinstance(each, str)]
    check_texts(texts, tokenizer, info, "input", generates=False)
    prompts = [tuple(await text_prompt(tokenizer, each) if isinstance(each, str) else each) for each in request.inputs]
    check_prompts(prompts, info, "input", generates=False)
    call_id = f"embd-{uuid.uuid4().hex}"
    requests = [
        Request(
            request_id=f"{call_id}-{number}",
            prompt_token_ids=ids,
            params=SamplingParams(max_tokens=1),
            seed=0,
            priority=request.priority or 0,
            cache_salt=request.cache_salt or "",
            queue_timeout_s=state.settings.queue_timeout_s,
            timeout_s=state.settings.request_timeout_s,
            pooling=request.pooling or "mean",
        )
        for number, ids in enumerate(prompts)
    ]
    return EmbeddingResponse(
        state, requests, model, dimensions=request.dimensions, as_base64=request.encoding_format == "base64"
    )


def _check(request: EmbeddingRequest, info: ModelInfo, max_inputs: int) -> None:
    if len(request.inputs) > max_inputs:
        raise invalid(
            f"input has {len(request.inputs)} inputs; at most {max_inputs} are taken in one call, send more calls",
            param="input",
        )
    if request.dimensions is not None and request.dimensions > info.hidden_size:
        raise invalid(
            f"dimensions is {request.dimensions}; this model's embeddings have 1 to {info.hidden_size}",
            param="dimensions",
        )


class EmbeddingResponse(Response):
    """Runs `requests` and answers with their vectors. A client that leaves ends them."""

    def __init__(
        self, state: ServerState, requests: Sequence[Request], model: str, *, dimensions: int | None, as_base64: bool
    ) -> None:
        self.status_code = 200
        self.media_type = "application/json"
        self.background = None
        self.init_headers(None)
        self._state = state
        self._requests = requests
        self._model = model
        self._dimensions = dimensions
        self._as_base64 = as_base64

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await while_connected(self._send_vectors(scope, receive, send), receive):
            _log.info("%s: the client has gone", self._requests[0].request_id)

    async def _send_vectors(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._written(await self._vectors()).encode("ascii")
        await Response(body, media_type=self.media_type)(scope, receive, send)

    async def _vectors(self) -> list[tuple[float, ...]]:
        """In the order of the requests. Raises an `HttpError` when the engine ends one of them by a fault."""
        found: dict[str, tuple[float, ...]] = {}
        failure: HttpError | None = None
        async with aclosing(self._state.run(self._requests)) as batches:
            async for events in batches:
                for event in events:
                    if event.embedding is not None:
                        found[event.delta.request_id] = shortened(event.embedding, self._dimensions)
                    elif event.delta.finish_reason is not None:
                        failure = failure or fault_error(
                            event.fault or "fault", event.error or "the engine ended the request"
                        )
                if failure is not None:
                    raise failure
        return [found[request.request_id] for request in self._requests]

    def _written(self, vectors: Sequence[tuple[float, ...]]) -> str:
        data = ",".join(
            f'{{"object":"embedding","index":{index},"embedding":{self._vector(vector)}}}'
            for index, vector in enumerate(vectors)
        )
        total = sum(len(request.prompt_token_ids) for request in self._requests)
        model = encode_basestring_ascii(self._model)
        usage = f'{{"prompt_tokens":{total},"total_tokens":{total}}}'
        return f'{{"object":"list","data":[{data}],"model":{model},"usage":{usage}}}'

    def _vector(self, values: tuple[float, ...]) -> str:
        if self._as_base64:
            raw = struct.pack(f"<{len(values)}f", *values)
            return f'"{base64.b64encode(raw).decode("ascii")}"'
        return f"[{','.join(f'{value:.9g}' for value in values)}]"  # 9 digits tell every float32 from the next
