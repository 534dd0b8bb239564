"""Secure sums: sites that mask their numbers, and connections whose answers are sums over all sites.

Masks are pairwise: numbers of fixed point, modulo 2^64, which cancel in the sum over all sites. Two sites have a secret
in common, which follows from the private key of the one and the public key of the other (X25519). A stream of random
numbers follows from the secret (HKDF, ChaCha20): one site adds it, the other subtracts it.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fcorun.base.errors import UserError, escape_controls
from fcorun.base.system.files import name_file_in_errors
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.plan.messages.table_messages import Keys
from fcorun.sites.plan.secure_sums import FEWEST_SITES, MOST_SITES, STEPS, step_of
from fcorun.sites.site.request_checks import FewRowsError
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import ALL_SITES, Connections, ConnectionsWrapper, Request
from fcorun.sites.transport.messages import NEW_RUN, OTHER_VERSION, WITHHELD, Message, OwnerError, describing_damage

Arrays = dict[str, np.ndarray]
_KEY_FILE = "masking_key"
_INFO = b"fcorun secure sum"
_MASKING = "masking"
_KEY, _NUMBER = "key", "number"  # a site's entry in the list of keys
_DTYPES = "dtypes"
_MAX_REASON = 500
_NUMBER_DTYPES = ("float32", "float64", "int32", "int64")  # before masks


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
                        f"another key; {NEW_RUN}")  # fmt: skip
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


@dataclass
class MaskedSite:
    """A site whose numbers are masked in the answers that the plan lists.

    A mask follows from all requests of the run so far, and from a random number that each site draws for the run. So
    no mask hides two different answers, and the masks cancel only if all sites received the same requests.

    Attributes:
        site: the site.
        key: the private key of the site.
        fingerprints: the fingerprints that the owner has entered, by the names of the other sites.
    """

    site: Site
    key: X25519PrivateKey
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bounds = self.site.plan.secure or {}
        self._refusal = ""  # of a number that cannot be masked; stays until the site is started anew
        self._forget_run()

    def _forget_run(self) -> None:
        self._number = ""
        self._sites: dict[str, dict[str, str]] = {}
        self._transcript = ""

    def answer(self, request: Message) -> Message:
        """Return the answer to a request with an envelope. Raises UserError if the site refuses."""
        if request.envelope is None:
            raise UserError("the server's request has no number")
        transcript = hashlib.sha256(self._transcript.encode() + request.to_bytes()).hexdigest()
        if request.name == Keys.name:
            answer = self._exchange_keys(request, request.envelope.of)
        else:
            if not self._sites:
                raise UserError("the server asks before all sites have keys, which secure sums need: begin the run "
                                "anew")  # fmt: skip
            if sorted(request.envelope.of) != sorted(self._sites):
                raise UserError("the server asks some of the sites, and the difference of two sums is the numbers of a "
                                "site: all requests go to all sites")  # fmt: skip
            if request.name in self._bounds:
                answer = self._answer_masked(request, bytes.fromhex(transcript))
            else:
                answer = self.site.compute_answer(request)
        self._transcript = transcript
        return answer

    def _answer_masked(self, request: Message, context: bytes) -> Message:
        """Return a masked answer, or random numbers in place of sums that the site withholds.

        The run goes on without these sums, and no sum over the other sites is told. Raises OwnerError for other numbers
        that cannot be masked, with one sentence for the server whatever number has no mask. From then on the site sends
        no masked numbers: which request is refused for which reason, or passes which bound, tells of them.
        """
        if self._refusal:
            raise UserError(self._refusal)
        hides_infinite = list_kinds()[request.name].hides_infinite
        try:
            answer = self.site.compute_answer(request)
            has_all = all(np.isfinite(values).all() for values in answer.arrays.values())
            if WITHHELD in answer.about or (hides_infinite and not has_all):
                return _replace_by_noise(answer, "")  # withheld because few rows make them up
            return self._mask(answer, context)
        except (FewRowsError, UnmaskableError) as error:
            self._refusal = describe_refusal(request.name)
            if hides_infinite and isinstance(error, UnmaskableError):
                return _replace_by_noise(answer, self._refusal)
            raise OwnerError(str(error), self._refusal) from error

    def _mask(self, answer: Message, context: bytes) -> Message:
        """Return an answer as numbers of fixed point, with masks that ``context`` determines."""
        factor = self.site.batch.share if list_kinds()[answer.name].is_mean else 1.0
        bound = self._bounds[answer.name]
        steps = {}
        dtypes = {}
        for name, values in answer.arrays.items():
            if factor != 1.0 and values.dtype.kind != "f" and name != "work":
                raise UserError("the algorithm uploads whole numbers, whose mean masks cannot hide: plan another one")
            steps[name] = to_fixed_point(values, bound, factor, answer.name)
            dtypes[name] = values.dtype.name
        others = [entry[_KEY] for entry in self._sites.values() if entry[_KEY] != public_key_of(self.key)]
        masks = sum_masks(self.key, others, context, sum(values.size for values in steps.values()))
        masked = {}
        for name in sorted(steps):
            values = steps[name]
            masked[name] = (values.ravel() + masks[: values.size]).reshape(values.shape)
            masks = masks[values.size :]
        return Message(answer.name, {_DTYPES: dtypes}, masked)

    # -- keys

    def _exchange_keys(self, request: Message, addressees: Sequence[str]) -> Message:
        """Return the site's key and a random number for the run; then keep those of all sites."""
        if self._sites:
            raise UserError(f"the server sends keys again, which stay the same in a run: {NEW_RUN}")
        if not request.about:
            self._number = secrets.token_hex(16)
            return Message(Keys.name, {_KEY: public_key_of(self.key), _NUMBER: self._number})
        with describing_damage("the server sent invalid keys of sites"):
            for entry in request.about.values():
                key = bytes.fromhex(entry[_KEY])
                number = bytes.fromhex(entry[_NUMBER])
                if (len(entry), len(key), len(number)) != (2, 32, 16):
                    raise ValueError("a key of another length")
                if (entry[_KEY], entry[_NUMBER]) != (key.hex(), number.hex()):
                    raise ValueError("a key written otherwise")
        sites: dict[str, dict[str, str]] = dict(request.about)
        if sorted(sites) != sorted(addressees):
            raise UserError(f"the server's keys are not those of the sites that it asks: {NEW_RUN}")
        public_values = {_KEY: public_key_of(self.key), _NUMBER: self._number}
        has_one_entry = list(sites.values()).count(public_values) == 1
        has_distinct_keys = len({entry[_KEY] for entry in sites.values()}) == len(sites)
        if not has_one_entry or not has_distinct_keys:
            raise UserError(f"the server's keys lack the one of this site, or repeat one: {NEW_RUN}")
        if not FEWEST_SITES <= len(sites) <= MOST_SITES:
            raise UserError(f"the server asks {len(sites)} sites, and secure sums need {FEWEST_SITES} to {MOST_SITES}: "
                            "of fewer, the sum tells a site the numbers of the other")  # fmt: skip
        keys = {name: entry[_KEY] for name, entry in sites.items() if entry != public_values}
        for name in sorted(keys.keys() - self.fingerprints.keys()):
            raise UserError(f"the owner of this site has entered no fingerprint of site '{name}': fcorun site "
                            f"accept ... fingerprints={{{name}: ...}}")  # fmt: skip
        for name in sorted(self.fingerprints.keys() - keys.keys()):
            raise UserError(f"the server leaves out site '{name}', whose fingerprint the owner of this site has "
                            "entered: all sites take part in secure sums")  # fmt: skip
        for name, key in keys.items():
            if fingerprint_of(key) != self.fingerprints[name]:
                raise UserError(f"the key of site '{name}' has the fingerprint {fingerprint_of(key)}, and the "
                                f"owner of this site has entered {self.fingerprints[name]}: compare them with the "
                                f"owner of '{name}'")  # fmt: skip
        self._sites = sites
        return Message(Keys.name)

    # -- what a restart needs

    def save_state(self) -> dict[str, np.ndarray]:
        """Return the state as arrays by name."""
        values = {"number": self._number, "sites": self._sites, "transcript": self._transcript}
        return {_MASKING: np.frombuffer(json.dumps(values).encode(), np.uint8), **self.site.save_state()}

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the state by an earlier one; no arrays stand for the state before the first request."""
        self._forget_run()
        if _MASKING in arrays:
            values = json.loads(arrays[_MASKING].tobytes())
            self._number = values["number"]
            self._sites = values["sites"]
            self._transcript = values["transcript"]
        self.site.load_state({name: array for name, array in arrays.items() if name != _MASKING})


def describe_refusal(message: str) -> str:
    """Return the sentence for the server of a site that cannot mask its numbers for a message."""
    return (f"this site does not mask its numbers for '{message}': one is beyond the bound of the plan or not finite, "
            "or few rows outweigh all others; plan data.standardize=pooled, smaller step sizes, a larger strength, "
            f"more held-out rows or none, or a larger --bound {message}=NUMBER")  # fmt: skip


def _replace_by_noise(answer: Message, reason: str) -> Message:
    """Return random numbers in place of an answer, and say so, with a reason or "" for few rows."""
    arrays = {}
    dtypes = {}
    for name, values in answer.arrays.items():
        arrays[name] = np.frombuffer(secrets.token_bytes(8 * values.size), np.uint64).reshape(values.shape)
        dtypes[name] = values.dtype.name
    return Message(answer.name, {_DTYPES: dtypes, WITHHELD: reason}, arrays)


@dataclass
class MaskedConnections(ConnectionsWrapper):
    """Connections to sites whose answers are masked. Their sum stands for the answer of one site, ``ALL_SITES``.

    Attributes:
        connections: the connections to the sites.
        bounds: the bound on the numbers of each masked message.
    """

    connections: Connections
    bounds: Mapping[str, float]

    def __post_init__(self) -> None:
        """Have the sites exchange keys. Raises UserError for fewer than three sites."""
        if len(self.sites) < FEWEST_SITES:
            raise UserError(f"the plan has secure sums, which need at least {FEWEST_SITES} sites, and there are "
                            f"{len(self.sites)}: find further sites, or plan without --secure")  # fmt: skip
        answers = self.connections.ask(Keys.name)
        self.connections.ask(Keys.name, about={site: answer.about for site, answer in answers.items()})

    def send(self, request: Request) -> dict[str, Message]:
        """Send a request to all sites. Returns their answers, or the sum of masked answers by ``ALL_SITES``."""
        assert request.of in (None, (ALL_SITES,)), "with secure sums all requests go to all sites"
        assert request.away is None, "with secure sums all sites answer"
        answers = self.connections.send(Request(request.message))
        if request.name not in self.bounds:
            return answers
        return {ALL_SITES: _add_answers(answers, self.bounds[request.name])}


def _add_answers(answers: Mapping[str, Message], bound: float) -> Message:
    """Return the sum of masked answers, without numbers if a site withholds its own because few rows make them up.

    Raises UserError for answers without masks or not alike, for masks that do not cancel, and for another reason.
    """
    forms: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}  # the dtype before masks, and the shape, by array
    for site, answer in answers.items():
        dtypes = answer.about.get(_DTYPES, {})
        masked_dtypes = {array.dtype.name for array in answer.arrays.values()}
        is_complete = isinstance(dtypes, dict) and set(dtypes) == set(answer.arrays)
        is_complete &= WITHHELD not in answer.about or list_kinds()[answer.name].may_withhold
        if not is_complete or masked_dtypes - {"uint64"} or not all(name in _NUMBER_DTYPES for name in dtypes.values()):
            raise UserError(f"site '{site}' sent no masked numbers, where the plan has secure sums: {OTHER_VERSION}")
        forms[site] = {name: (dtypes[name], array.shape) for name, array in answer.arrays.items()}
    first_site = next(iter(forms))
    for site, form in forms.items():
        if form != forms[first_site]:
            raise UserError(f"site '{site}' sent other sums than site '{first_site}': {OTHER_VERSION}")
    reasons = {site: answers[site].about[WITHHELD] for site in sorted(answers) if WITHHELD in answers[site].about}
    for site, reason in reasons.items():
        if reason:
            raise UserError(f"site '{site}': {escape_controls(str(reason))[:_MAX_REASON]}")
    arrays = {}
    for name, (dtype, shape) in forms[first_site].items():
        if reasons:
            arrays[name] = np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 0, dtype)
            continue
        total = np.asarray(np.sum([answer.arrays[name] for answer in answers.values()], axis=0, dtype=np.uint64))
        arrays[name] = from_fixed_point(total, bound, len(answers), np.dtype(dtype))
    return Message(answers[first_site].name, {}, arrays)
