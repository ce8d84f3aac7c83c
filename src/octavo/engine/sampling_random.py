"""Counter-based randomness: noise as a pure function of (seed, choice, position, token id).

Holds no stream and no state, so neither batching nor preemption can move it. Does not know logits or filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.engine.sampling_workspace import Workspace, to_device

RANDOM_BITS = 53
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring counters start far apart
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # Stafford's mix 13, the finaliser of splitmix64
_SMALLEST = 2.0**-54
_LARGEST = 1.0 - 2.0**-24  # the float32 just below 1


def mix64(value: int) -> int:
    """A bijection of 64-bit words in which every input bit reaches every output bit.

    One step of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MULTIPLIERS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIERS[1]) & _MASK
    return value ^ (value >> 31)


def row_key(seed: int, choice: int, position: int) -> int:
    """The 64-bit key of one draw. `seed` counts modulo 2^64; each argument is absorbed by a bijection of its own."""
    return mix64(mix64(mix64(seed & _MASK) ^ choice) ^ position)


class TokenNoise:
    """Gumbel noise over a vocabulary, one independent value per (key, token id).

    Integers are exact on every device, so the random bits are too; the two logarithms are the device's own.
    """

    def __init__(self, vocab_size: int, workspace: Workspace) -> None:
        self._workspace = workspace
        self._token_hash = torch.from_numpy(_token_hashes(vocab_size)).to(workspace.device)  # [V] int64

    @property
    def hashes(self) -> Tensor:
        """int64 [V]: of each token id."""
        return self._token_hash

    def bits(self, keys: Sequence[int], token_ids: Tensor | None = None) -> Tensor:
        """`[len(keys), V]` int64, or `[len(keys), len(token_ids)]`, each uniform over `range(2**53)`.

        Key and token hash are both well mixed already, so two multiplications with one fold between them are enough.
        The result is scratch: valid until the next call.
        """
        hashes = self._token_hash if token_ids is None else self._token_hash[token_ids]
        signed = to_device(torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)), hashes.device)
        x = self._workspace.take("random", len(keys), len(hashes), torch.int64)
        high = self._workspace.take("random high", len(keys), len(hashes), torch.int64)
        torch.bitwise_xor(hashes, signed[:, None], out=x).mul_(_signed(_MULTIPLIERS[0]))
        # int64 shifts copy the sign, so a logical shift is a shift and a mask.
        torch.bitwise_right_shift(x, 32, out=high).bitwise_and_(2**32 - 1)
        x.bitwise_xor_(high).mul_(_signed(_MULTIPLIERS[1]))
        return x.bitwise_right_shift_(64 - RANDOM_BITS).bitwise_and_(2**RANDOM_BITS - 1)

    def gumbel(self, keys: Sequence[int], token_ids: Tensor | None = None) -> Tensor:
        """Float32 standard Gumbel noise in the shape of `bits`, always finite, between -2.9 and 37.5. Scratch too.

        With v uniform in (0, 1), -log1p(-v) is a standard exponential and minus its logarithm a Gumbel. The large
        values come from small v, where float32 is fine-grained: tokens of probability 1e-15 keep their chance.
        """
        bits = self.bits(keys, token_ids)
        v = self._workspace.take("gumbel", len(keys), bits.shape[1], torch.float32).copy_(bits)
        v.mul_(2.0**-RANDOM_BITS).clamp_(_SMALLEST, _LARGEST)
        return v.neg_().log1p_().neg_().log_().neg_()


def _token_hashes(vocab_size: int) -> npt.NDArray[np.int64]:
    x = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
