"""Streams of random numbers: independent generators, and numbers of many clients at once."""

import hashlib
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Shaped


def random_stream(seed: int, *names: object) -> np.random.Generator:
    """Return a generator that depends on ``seed`` and ``names`` alone, so that no stream shifts another."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


# Random numbers that depend on (stream, seed, round, client) alone, for many clients at once.
#
# The generator is counter-based: the i-th number of a client is the i-th output of SplitMix64 (Steele, Lea and Flood,
# OOPSLA 2014) from a state hashed from all four. So a client draws the same numbers in any cohort and on any device.

_STEP = np.uint64(0x9E3779B97F4A7C15)


def client_keys(names: Iterable[object]) -> np.ndarray:
    """Hash the name of each client to a key, uint64 (M,)."""
    return np.array([_hash(str(name)) for name in names], np.uint64)


def stream_states(stream: int, seed: int, rounds: np.ndarray, clients: np.ndarray | int = 0) -> np.ndarray:
    """Return the generator states of clients, given by their keys, in these rounds, uint64; both (N,), or broadcast.

    Without ``clients``, return the states of the numbers that all clients of a round share.
    """
    head = np.array([_hash(f"{stream}/{seed}")], np.uint64)
    return mix(mix(head + _STEP * (rounds.astype(np.uint64) + np.uint64(1))) ^ np.asarray(clients, np.uint64))


def draw_uniforms(start: np.ndarray, count: int) -> np.ndarray:
    """Draw ``count`` numbers uniformly from [0, 1) from each state, float64 (N, count)."""
    return (_numbers(start, np.arange(count, dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53


def draw_permutations(start: np.ndarray, epochs: int, count: int) -> np.ndarray:
    """Draw a permutation of 0, ..., count - 1 from each state and epoch, int64 (N, epochs, count)."""
    items = np.arange(count, dtype=np.uint64)
    keys = _numbers(start, (np.arange(epochs, dtype=np.uint64)[:, None] << np.uint64(32)) + items)
    item_bits = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    keys &= ~item_bits  # with the item in the low bits, a sort replaces the slower argsort, and no keys are equal
    keys |= items
    keys.sort(axis=-1)
    keys &= item_bits
    return keys.view(np.int64)


def _numbers(start: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Return the outputs of each state (N,) at these counters, uint64 (N, ...)."""
    return mix(start.reshape(-1, *[1] * counters.ndim) + _STEP * (counters + np.uint64(1)))


def mix(z: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 to each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def draw_uniform_per_group(group: Shaped[np.ndarray, " N"], rng: np.random.Generator) -> Float[np.ndarray, " N"]:
    """Draw a number from [0, 1) for each group; return, for each row, the number of its group, shape (N,).

    The number depends on the state of ``rng`` and on the group's name alone: other groups do not change it.
    """
    salt = rng.bytes(16)
    names, inverse = np.unique(group, return_inverse=True)
    digests = b"".join(hashlib.blake2b(str(name).encode(), digest_size=8, salt=salt).digest() for name in names)
    return ((np.frombuffer(digests, "<u8") >> np.uint64(11)) * 2.0**-53)[inverse]
