"""Log-probabilities of tokens in the shapes of OpenAI's two APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.server.generation import ScoredToken
from octavo.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this for a token that cannot come


def token_string(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's own text; `bytes:` and its bytes in hex where these are not whole characters."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """`logprob` as JSON can tell it."""
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(tokenizer: Tokenizer, scored: Sequence[ScoredToken]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion: an entry for each token, alternatives best first."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_string(tokenizer, token_id),
            "logprob": finite(logprob),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content = []
    for token_id, logprobs in scored:
        assert logprobs is not None, "only the first token of a prompt has none, and a chat echoes no prompt"
        top = [entry(each, logprob) for each, logprob in logprobs.top]
        content.append({**entry(token_id, logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Writes `choices[].logprobs` of one choice of a text completion, piece by piece.

    It keeps where the next token begins in the choice's text: a token within a character begins where that does.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], echo: str) -> None:
        """`prompt_ids` are those of an echoed prompt, `echo` its text; both empty without an echo."""
        self._tokenizer = tokenizer
        self._num_prompt = len(prompt_ids)
        self._num_seen = 0
        self._echo_length = len(echo)
        self._detokenizer = tokenizer.detokenizer()
        self._offset = 0

    def entries(self, scored: Sequence[ScoredToken]) -> dict[str, Any]:
        """The next tokens of the choice. `top_logprobs` hold the token itself beside the alternatives."""
        tokens, logprobs, tops, offsets = [], [], [], []
        for token_id, found in scored:
            if self._num_prompt and self._num_seen == self._num_prompt:
                # The output is decoded by itself, and begins where the echoed text ends.
                self._detokenizer, self._offset = self._tokenizer.detokenizer(), self._echo_length
            self._num_seen += 1
            tokens.append(token_string(self._tokenizer, token_id))
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push(token_id))
            logprobs.append(None if found is None else finite(found.logprob))
            tops.append(None if found is None else self._top(token_id, found.logprob, found.top))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, token_id: int, logprob: float, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Two tokens can spell the same text: the likelier keeps the name."""
        named: dict[str, float] = {}
        for each, value in (*top, (token_id, logprob)):
            named.setdefault(token_string(self._tokenizer, each), finite(value))
        return named
