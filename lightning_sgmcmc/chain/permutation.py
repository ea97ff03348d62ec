"""Permutations of more numbers than a table should hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Numbers up to which a permutation is a table, 64 MiB of them.
LARGEST_TABLE = 1 << 23
_ROUNDS = 12


class Permutation:
    """A permutation pi of 0, ..., N - 1 of which any entries are computed by themselves.

    The numbers of m = ceil(log2 N) bits are permuted by an unbalanced Feistel network, halves of
    floor(m/2) and ceil(m/2) bits that change in turn by a keyed hash F_r of the other,

        high <- high xor F_r(low),    low <- low xor F_r(high),

    and a result that is not below N is permuted again until it is, less than twice in the mean.
    Each round can be undone, so this is a permutation whatever the keys. Its keys are random, and
    with 12 rounds it cannot be told from a uniform one by the minibatches of a chain: 4 rounds of
    random functions are enough for 2^(m/4) entries, and each further round adds to that.

    Sources: Luby and Rackoff 1988 (SIAM J. Comput. 17); Black and Rogaway 2002, section 5 (cycle
    walking); Patarin 2010 (Cryptology ePrint 2010/293), for the number of rounds.

    Args:
        size: N, below 2^62.
        generator: Draws the keys.
    """

    def __init__(self, size: int, generator: np.random.Generator) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        low = bits // 2
        self._low, self._high = np.uint64(low), np.uint64(bits - low)
        self._keys = generator.integers(0, 1 << 64, _ROUNDS, dtype=np.uint64, endpoint=False)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return pi(i) for every i of ``places``, [n]."""
        found = self._permuted(places.astype(np.uint64))
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._permuted(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)

    def _permuted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high = numbers >> self._low
        low = numbers & ((np.uint64(1) << self._low) - np.uint64(1))
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            high ^= _hash(low, even) >> (np.uint64(64) - self._high)
            low ^= _hash(high, odd) >> (np.uint64(64) - self._low)
        return (high << self._low) | low


def _hash(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return 64 mixed bits of each value: the finaliser of SplitMix64 after its increment."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
