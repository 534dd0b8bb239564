"""Secure sums: sites that mask their numbers, and connections whose answers are sums over all sites."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fcorun.base.errors import UserError, escape_controls
from fcorun.sites.plan.messages.shelf import list_kinds
from fcorun.sites.plan.messages.table_messages import Keys
from fcorun.sites.plan.secure_sums import FEWEST_SITES, MOST_SITES
from fcorun.sites.site.few_rows import FewRowsError
from fcorun.sites.site.masks import (
    UnmaskableError,
    fingerprint_of,
    flatten,
    from_fixed_point,
    public_key_of,
    sum_masks,
    to_fixed_point,
    unflatten,
)
from fcorun.sites.site.site import Site
from fcorun.sites.transport.connections import ALL_SITES, Connections, ConnectionsWrapper, Request
from fcorun.sites.transport.messages import WITHHELD, Message, OwnerError, describe_damage

_MASKING = "masking"
_KEY, _NUMBER = "key", "number"  # a site's entry in the list of keys
_DTYPES = "dtypes"
_MAX_REASON = 500
_NUMBER_DTYPES = ("float32", "float64", "int32", "int64")  # before masks


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

    @property
    def _bounds(self) -> dict[str, float]:
        bounds = self.site.plan.secure
        assert bounds is not None
        return bounds

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
        factor = self.site.share if list_kinds()[answer.name].is_mean else 1.0
        bound, steps, dtypes = self._bounds[answer.name], {}, {}
        for name, values in answer.arrays.items():
            if factor != 1.0 and values.dtype.kind != "f" and name != "work":
                raise UserError("the algorithm uploads whole numbers, whose mean masks cannot hide: plan another one")
            steps[name] = to_fixed_point(values, bound, factor, answer.name)
            dtypes[name] = values.dtype.name
        others = [entry[_KEY] for entry in self._sites.values() if entry[_KEY] != public_key_of(self.key)]
        entries = flatten(steps)
        masked = unflatten(entries + sum_masks(self.key, others, context, len(entries)), steps)
        return Message(answer.name, {_DTYPES: dtypes}, masked)

    # -- keys

    def _exchange_keys(self, request: Message, addressees: Sequence[str]) -> Message:
        """Return the site's key and a random number for the run; then keep those of all sites."""
        if self._sites:
            raise UserError("the server sends keys again, which stay the same in a run: begin the run anew")
        if not request.about:
            self._number = secrets.token_hex(16)
            return Message(Keys.name, {_KEY: public_key_of(self.key), _NUMBER: self._number})
        sites = _read_keys(request.about)
        if sorted(sites) != sorted(addressees):
            raise UserError("the server's keys are not those of the sites that it asks: begin the run anew")
        public_values = {_KEY: public_key_of(self.key), _NUMBER: self._number}
        has_one_entry = list(sites.values()).count(public_values) == 1
        has_distinct_keys = len({entry[_KEY] for entry in sites.values()}) == len(sites)
        if not has_one_entry or not has_distinct_keys:
            raise UserError("the server's keys lack the one of this site, or repeat one: begin the run anew")
        if not FEWEST_SITES <= len(sites) <= MOST_SITES:
            raise UserError(f"the server asks {len(sites)} sites, and secure sums need {FEWEST_SITES} to {MOST_SITES}: "
                            "of fewer, the sum tells a site the numbers of the other")  # fmt: skip
        if self.site.policy.keys == "pinned":
            keys = {name: entry[_KEY] for name, entry in sites.items() if entry != public_values}
            for name in sorted(keys.keys() - self.fingerprints.keys()):
                raise UserError(f"the owner of this site has entered no fingerprint of site '{name}': fcorun site "
                                f"accept ... fingerprints={{{name}: ...}}, or policy.keys=any trusts the server"
                                )  # fmt: skip
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
            self._number, self._sites, self._transcript = values["number"], values["sites"], values["transcript"]
        self.site.load_state({name: array for name, array in arrays.items() if name != _MASKING})


def describe_refusal(message: str) -> str:
    """Return the sentence for the server of a site that cannot mask its numbers for a message."""
    return (f"this site does not mask its numbers for '{message}': one is beyond the bound of the plan or not finite, "
            "or few rows outweigh all others; plan data.standardize=pooled, smaller step sizes, a larger strength, "
            f"or a larger --bound {message}=NUMBER")  # fmt: skip


def _replace_by_noise(answer: Message, reason: str) -> Message:
    """Return random numbers in place of an answer, and say so, with a reason or "" for few rows."""
    arrays, dtypes = {}, {}
    for name, values in answer.arrays.items():
        arrays[name] = np.frombuffer(secrets.token_bytes(8 * values.size), np.uint64).reshape(values.shape)
        dtypes[name] = values.dtype.name
    return Message(answer.name, {_DTYPES: dtypes, WITHHELD: reason}, arrays)


def _read_keys(about: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the entry of each site. Raises UserError for anything but public keys and random numbers."""
    try:
        for entry in about.values():
            key, number = bytes.fromhex(entry[_KEY]), bytes.fromhex(entry[_NUMBER])
            if (len(entry), len(key), len(number)) != (2, 32, 16):
                raise ValueError("a key of another length")
            if (entry[_KEY], entry[_NUMBER]) != (key.hex(), number.hex()):
                raise ValueError("a key written otherwise")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"the server sent invalid keys of sites ({describe_damage(error)}): use the same version of "
                        "fcorun at the server and at all sites") from error  # fmt: skip
    return dict(about)


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

    Raises UserError if the answers are not alike, if the masks do not cancel, and if a site gives another reason.
    """
    forms = {site: _form_of(answer, site) for site, answer in answers.items()}
    first_site = next(iter(forms))
    for site, form in forms.items():
        if form != forms[first_site]:
            raise UserError(f"site '{site}' sent other sums than site '{first_site}': use the same version of fcorun "
                            "at the server and at all sites")  # fmt: skip
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


def _form_of(answer: Message, site: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype before masks and the shape of each array. Raises UserError for an answer without masks."""
    dtypes = answer.about.get(_DTYPES, {})
    masked_dtypes = {array.dtype.name for array in answer.arrays.values()}
    is_complete = isinstance(dtypes, dict) and set(dtypes) == set(answer.arrays)
    is_complete &= WITHHELD not in answer.about or list_kinds()[answer.name].may_withhold
    if not is_complete or masked_dtypes - {"uint64"} or not all(name in _NUMBER_DTYPES for name in dtypes.values()):
        raise UserError(f"site '{site}' sent no masked numbers, where the plan has secure sums: use the same version "
                        "of fcorun at the server and at all sites")  # fmt: skip
    return {name: (dtypes[name], array.shape) for name, array in answer.arrays.items()}
