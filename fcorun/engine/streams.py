"""Random numbers that depend on (stream, seed, round, client) alone, for many clients at once.

Counter-based: the i-th number of a client is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) at the i-th place from a
state that is hashed from all four. So a client draws the same among other clients, on another device, at its own site.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)


def client_keys(names: Iterable[object]) -> np.ndarray:
    """A number for each client, uint64 (M,), from its name alone."""
    return np.array([_hashed(str(name)) for name in names], np.uint64)


def stream_states(stream: int, seed: int, rounds: np.ndarray, clients: np.ndarray | int = 0) -> np.ndarray:
    """Where the numbers of these clients, given by ``identities``, begin in these rounds, uint64; both (N,), or
    broadcast. Without clients: what all of them share."""
    head = np.array([_hashed(f"{stream}/{seed}")], np.uint64)
    return mix(mix(head + _STEP * (rounds.astype(np.uint64) + np.uint64(1))) ^ np.asarray(clients, np.uint64))


def draw_uniforms(start: np.ndarray, count: int) -> np.ndarray:
    """``count`` numbers from [0, 1) from each of these states, float64 (N, count)."""
    return (_numbers(start, np.arange(count, dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53


def draw_permutations(start: np.ndarray, epochs: int, count: int) -> np.ndarray:
    """Permutations of 0, ..., count - 1, one from each of these states and epoch, int64 (N, epochs, count)."""
    places = np.arange(count, dtype=np.uint64)
    keys = _numbers(start, (np.arange(epochs, dtype=np.uint64)[:, None] << np.uint64(32)) + places)
    low = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    keys &= ~low  # the place of each in its low bits: sorting then costs less than an argsort, and knows no ties
    keys |= places
    keys.sort(axis=-1)
    keys &= low
    return keys.view(np.int64)


def _numbers(start: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The numbers of each state (N,) at these places, uint64 (N, ...)."""
    return mix(start.reshape(-1, *[1] * places.ndim) + _STEP * (places + np.uint64(1)))


def mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer of each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
