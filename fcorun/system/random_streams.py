"""Independent streams of random numbers, each identified by a seed and names."""

import hashlib

import numpy as np


def random_stream(seed: int, *names: object) -> np.random.Generator:
    """Return a generator that depends on ``seed`` and ``names`` alone, so that no stream shifts another."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
