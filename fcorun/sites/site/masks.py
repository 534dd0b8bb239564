"""Pairwise masks: numbers of fixed point, modulo 2^64, whose masks cancel in the sum over all sites.

Two sites have a secret in common, which follows from the private key of the one and the public key of the other
(X25519). A stream of random numbers follows from the secret (HKDF, ChaCha20): one site adds it, the other subtracts it.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcorun.base.errors import UserError
from fcorun.base.system.files import name_file_in_errors
from fcorun.sites.plan.secure_sums import STEPS, step_of
from fcorun.sites.transport.messages import OwnerError

Arrays = dict[str, np.ndarray]
_KEY_FILE = "masking_key"
_INFO = b"fcorun secure sum"


def make_key() -> X25519PrivateKey:
    """Draw a private key."""
    return X25519PrivateKey.generate()


def open_key(folder: Path) -> X25519PrivateKey:
    """Return the private key of a site's folder, which is drawn once. Only the owner of the file may read it."""
    path = folder / _KEY_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii")))
        except (OSError, ValueError) as error:
            raise OwnerError(f"{path} holds no key of a site ({error}): restore the file, or remove it and send the "
                             "other owners the new fingerprint", "this site has lost its key: its owner restores it, "
                             "or sends the other owners a new fingerprint") from error  # fmt: skip
    key = make_key()
    try:
        with name_file_in_errors(path), os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key.private_bytes_raw().hex())
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # a full disk leaves no file without a key
        path.unlink(missing_ok=True)
        raise
    return key


def public_key_of(key: X25519PrivateKey) -> str:
    """Return the public key, 64 hex digits."""
    return key.public_key().public_bytes_raw().hex()


def fingerprint_of(public_key: str) -> str:
    """Return the fingerprint of a public key, 32 hex digits, for owners to compare."""
    return hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:32]


class UnmaskableError(UserError):
    """An error about a number that masks cannot hide; its sentence is for the owner of the site."""


def to_fixed_point(values: np.ndarray, bound: float, factor: float, where: str) -> np.ndarray:
    """Return numbers, times a factor, as whole steps modulo 2^64. Whole numbers are taken as they are, without factor.

    Raises UnmaskableError for a number that is not finite, and for one beyond the bound: nothing wraps around.
    """
    if values.dtype.kind != "f":
        if (np.abs(values.astype(np.float64)) > STEPS).any():
            raise UnmaskableError(f"a whole number of its answer '{where}' is beyond 2^52")
        return values.astype(np.int64).view(np.uint64)
    scaled = values.astype(np.float64) * factor
    if not np.isfinite(scaled).all():
        raise UnmaskableError(f"a number of its answer '{where}' is not finite, which masks cannot hide: plan smaller "
                              "step sizes, or data.standardize=pooled")  # fmt: skip
    if (np.abs(scaled) > bound).any():
        raise UnmaskableError(f"a number of its answer '{where}' is beyond the plan's bound {bound:.6g}: plan "
                              f"data.standardize=pooled, or a larger --bound {where}=NUMBER")  # fmt: skip
    return np.rint(scaled / step_of(bound)).astype(np.int64).view(np.uint64)


def from_fixed_point(total: np.ndarray, bound: float, n_sites: int, dtype: np.dtype) -> np.ndarray:
    """Return the numbers of a sum of ``to_fixed_point`` over sites. Raises UserError if the masks did not cancel."""
    steps = total.view(np.int64)
    if (np.abs(steps.astype(np.float64)) > n_sites * float(STEPS)).any():
        raise UserError("the masks of the sites do not cancel: the sites received different requests, or a site has "
                        "another key; begin the run anew")  # fmt: skip
    return steps.astype(dtype) if dtype.kind != "f" else (steps * step_of(bound)).astype(dtype)


def sum_masks(key: X25519PrivateKey, others: Iterable[str], context: bytes, length: int) -> np.ndarray:
    """Return the sum of a site's masks for an answer, modulo 2^64, (length,) of uint64.

    Args:
        key: the site's private key.
        others: the public keys of all other sites.
        context: the bytes that name the answer: the same at all sites, and never twice.
    """
    public_key = public_key_of(key)
    total = np.zeros(length, np.uint64)
    for other in others:
        try:
            secret = key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
        except ValueError as error:
            raise UserError(f"{other[:16]}.. is no public key of a site") from error
        seed = HKDF(hashes.SHA256(), 32, None, _INFO + context).derive(secret)
        stream = Cipher(algorithms.ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(8 * length))
        mask = np.frombuffer(stream, "<u8").astype(np.uint64)
        total = total + mask if public_key < other else total - mask
    return total


def flatten(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the entries of arrays of uint64 in the order of their names."""
    return np.concatenate([np.zeros(0, np.uint64), *(arrays[name].ravel() for name in sorted(arrays))])


def unflatten(entries: np.ndarray, like: Mapping[str, np.ndarray]) -> Arrays:
    """Return the arrays of ``flatten``, with the names and shapes of ``like``."""
    arrays, start = {}, 0
    for name in sorted(like):
        size, shape = like[name].size, like[name].shape
        arrays[name] = entries[start : start + size].reshape(shape)
        start += size
    return arrays
