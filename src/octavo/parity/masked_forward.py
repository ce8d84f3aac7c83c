"""One forward in which each token sees what a shifted engine showed it: the definition of decoding past the context.

Owns the mask, the positions, and dense attention in plain torch under them. Runs no engine and stores no K/V.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.cache.spec import LayerSpec
from octavo.engine.loaded_model import LoadedModel
from octavo.kernels.rows import HeadWeights, Rotation, split_heads
from octavo.models.inputs import ForwardInputs


@dataclass(frozen=True, slots=True)
class ShiftSchedule:
    """A context of `context` tokens that, when it is full, forgets `drop` tokens after the first `keep`.

    tokens   0 ... keep | forgotten | ... t        offset(t) of them are forgotten when t is computed
    """

    context: int
    keep: int
    block_size: int

    @property
    def drop(self) -> int:
        """The older half of what may be forgotten, in whole blocks."""
        return max(1, (self.context - self.keep) // 2 // self.block_size) * self.block_size

    def offsets(self, num_prompt: int, num_tokens: int) -> Tensor:
        """[num_tokens] int64: how many tokens each one had lost before it; the prompt, which fits, none."""
        offsets, offset = [0] * num_prompt, 0
        for token in range(num_prompt, num_tokens):
            if token - offset == self.context:
                offset += self.drop
            offsets.append(offset)
        return torch.tensor(offsets)


class MaskedAttention:
    """`attend` of a whole sequence at once. K and V go through the engine's codecs; all else is float64.

    Keys come rotated to the positions they were computed at. A query sees kept ones there, and each other one as far
    back as there are tokens between: what was forgotten in the meantime moves it closer to the front.
    """

    def __init__(self, loaded: LoadedModel, offsets: Tensor, keep: int) -> None:
        """`offsets` [T] int64 does not fall from one token to the next."""
        self._loaded = loaded
        self._specs = loaded.model.kv_layout(loaded.plan.config)
        self._offsets = offsets
        self._keep = keep

    def attend_qkv(
        self, layer: int, qkv: Tensor, rotation: Rotation, weights: HeadWeights, dtype: torch.dtype
    ) -> Tensor:
        """qkv [T, (Hq + 2 Hkv) · D] of all tokens; returns [T, Hq, D] in `dtype`."""
        spec = self._specs[layer]
        q, k, v = split_heads(qkv, spec.num_q_heads, spec.num_kv_heads, spec.k_dim, rotation, weights)
        return self.attend(layer, q, k, v).to(dtype)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, Hq, Dk], k [T, Hkv, Dk], v [T, Hkv, Dv] of all tokens; returns float32 [T, Hq, Dv]."""
        k_codec, v_codec = self._loaded.plan.codecs
        keys, values = k_codec.round_trip(k).double(), v_codec.round_trip(v).double()
        frequencies = self._loaded.model.inverse_frequencies(layer).double()
        spec, parts = self._specs[layer], []
        for offset in self._offsets.unique().tolist():  # tokens of one offset follow each other, and see keys alike
            (tokens,) = (self._offsets == offset).nonzero(as_tuple=True)
            seen = int(tokens[-1]) + 1
            shown = _turned_back(keys[:seen], self._lag(offset, seen), frequencies)
            parts.append(_attention(q[tokens].double(), shown, values[:seen], self._hidden(tokens, seen, spec), spec))
        return torch.cat(parts).float()

    def positions(self) -> Tensor:
        """[T] int64: where each token lay when it was computed."""
        return torch.arange(len(self._offsets)) - self._offsets

    def _lag(self, offset: int, seen: int) -> Tensor:
        """[seen]: by how many positions keys were moved to the front by the time that `offset` tokens are gone."""
        lag = offset - self._offsets[:seen]
        lag[: self._keep] = 0
        return lag

    def _hidden(self, tokens: Tensor, seen: int, spec: LayerSpec) -> Tensor:
        """[len(tokens), seen] bool."""
        offset, key = int(self._offsets[tokens[0]]), torch.arange(seen)
        kept = key < self._keep
        position = torch.where(kept, key, key - offset)
        query = (tokens - offset)[:, None]
        hidden = (position > query) | (~kept & (position < self._keep))
        return hidden if spec.window is None else hidden | (position <= query - spec.window)


def masked_logits(loaded: LoadedModel, token_ids: Tensor, offsets: Tensor, keep: int, first: int) -> Tensor:
    """Logits [T - first, V] float32 of `token_ids` [T] from the `first` on, by one forward of the model."""
    attention = MaskedAttention(loaded, offsets, keep)
    positions = attention.positions()
    device = loaded.plan.device
    inputs = ForwardInputs(token_ids.to(device), positions.to(device), int(positions.max()) + 1)
    with torch.inference_mode():
        return loaded.model.logits(loaded.model.forward(inputs, attention)[first:])


def _turned_back(keys: Tensor, lag: Tensor, frequencies: Tensor) -> Tensor:
    """keys [S, H, D] float64, of which pairs (i, i + R/2) of the first R dimensions are rotated by -lag [S]."""
    angle = lag.to(keys.device)[:, None, None] * -frequencies.to(keys.device)
    half = len(frequencies)
    first, second, rest = keys[..., :half], keys[..., half : 2 * half], keys[..., 2 * half :]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, spec: LayerSpec) -> Tensor:
    """One softmax per row over the keys that are not hidden [T, S]."""
    group = spec.num_q_heads // spec.num_kv_heads
    scores = torch.einsum("thd,shd->hts", q, k.repeat_interleave(group, 1)) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    weights = scores.masked_fill(hidden.to(scores.device), float("-inf")).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v.repeat_interleave(group, 1))
