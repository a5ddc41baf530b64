"""Randomness by name: every random number in the program comes from a `Stream`.

A stream is addressed by a seed and a name, such as `Stream(1, "shuffle", epoch)`. Nothing is carried from one
draw to the next, so a resumed run needs no saved generator state, and no draw depends on the order of calls.

numpy promises the output of its bit generators for ever, but not the output of `Generator.permutation` and its
siblings. So only raw Philox words are taken from numpy; what is made of them is decided here.
"""

from __future__ import annotations

import hashlib

import numpy as np


class Stream:
    """Random numbers that depend on `seed` and `name` alone, on every platform and numpy version.

    Normal values go through the platform's logarithm and cosine, and so may differ in the last bit.
    """

    def __init__(self, seed: int, *name: object) -> None:
        address = "\x1f".join(["dspt", str(int(seed)), *map(str, name)])
        key = hashlib.sha256(address.encode(errors="surrogateescape")).digest()
        self._bits = np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8").astype(np.uint64))

    def raw(self, n: int) -> np.ndarray:
        """Return `n` uniform 64-bit words."""
        return self._bits.random_raw(n)

    def uniform(self, n: int) -> np.ndarray:
        """Return `n` float64 values in [0, 1), each a multiple of 2**-53."""
        words: np.ndarray = self.raw(n) >> np.uint64(11)
        return words * 2.0**-53

    def integers(self, n: int, high: int) -> np.ndarray:
        """Return `n` int64 values uniform over 0..high-1."""
        return (self.uniform(n) * high).astype(np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """Return a uniformly random order of 0..n-1."""
        return np.argsort(self.raw(n), kind="stable")

    def normal(self, *shape: int) -> np.ndarray:
        """Return standard normal float64 values (Box-Muller)."""
        n = int(np.prod(shape))
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(n)))
        values: np.ndarray = radius * np.cos(2.0 * np.pi * self.uniform(n))
        return values.reshape(shape)
