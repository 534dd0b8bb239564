"""Messages between the server and the sites: a name, small values by name, and arrays of numbers.

``fcorun.sites.plan.messages`` has the kinds of messages that sites answer. A message travels as bytes: an .npz archive
of its arrays and of one JSON text. Nothing in it is executed.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, first_line
from fcorun.base.records.formats import arrays_from_bytes, npz_bytes

WITHHELD = "withheld"  # the key of why numbers of an answer are withheld, "" because few rows make them up
LAST_REQUEST = "end"  # the name of the request after which another run may begin
REFUSAL = "refusal"  # the name of a sentence instead of an answer
# A plan has one run, which its digest names.
NEW_RUN = (
    "make the plan anew with another seed=NUMBER, which draws no new split, have all owners accept it, and run it with "
    "an empty folder"
)
OTHER_VERSION = "use the same version of fcorun at the server and at all sites"
_HEADER = "message.json"
_MAX_HEADER = 2**20
_MAX_ARRAYS = 1000
_MAX_NUMBER = 2**53
_NAME = re.compile(r"[a-z_]{1,50}")
_KINDS = "fiub"  # of dtypes: floats, integers and booleans


class OwnerError(UserError):
    """An error whose sentence is for the owner of a site alone: it may quote cells, or name files of the site.

    Attributes:
        public: the sentence that the server may see.
    """

    def __init__(self, sentence: str, public: str):
        super().__init__(sentence)
        self.public = public


class SiteRefusal(UserError):
    """A site's refusal to answer: a sentence that names the site."""


class ForeignAnswer(UserError):
    """An answer that is another site's than the one that was asked: a sentence that names both."""


class SiteLost(UserError):
    """A site without an answer within the time limit: a sentence that names the site, and how to go on."""


@dataclass(frozen=True)
class Envelope:
    """The place of a request in a run. An answer has the envelope of its request.

    Attributes:
        run: the identity of the run, a text.
        number: the number of the request among those of the run, from 0.
        of: the sites that are asked, sorted.
    """

    run: str
    number: int
    of: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the envelope as plain values."""
        return {"run": self.run, "number": self.number, "of": list(self.of)}

    @classmethod
    def from_json(cls, values: Any) -> "Envelope":
        """Return the envelope of a header. Raises an error for anything else."""
        run, number, of = (values[key] for key in ("run", "number", "of"))
        is_plain = isinstance(run, str) and type(number) is int and isinstance(of, list) and len(values) == 3
        if not (is_plain and 0 <= number <= _MAX_NUMBER and all(isinstance(site, str) for site in of)):
            raise ValueError("its envelope has no run, number and sites")
        return cls(run, number, tuple(of))


@dataclass(frozen=True)
class Message:
    """A message of either direction.

    Attributes:
        name: the name of a kind of message; an answer has the name of its request, or is a refusal.
        about: small values by name, fit for JSON.
        arrays: arrays of numbers by name.
        envelope: the place in a run; None before a message is addressed, and in an answer that has been read.
        site: the name of the site that sends an answer or a refusal; None in a request, and in an answer before it
            leaves and after it has been read.
    """

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    envelope: Envelope | None = None
    site: str | None = None

    def to_bytes(self) -> bytes:
        """Return the message as bytes, which are made once. Raises UserError for a header that is too large."""
        return self._content

    @cached_property
    def _content(self) -> bytes:
        return npz_bytes({_HEADER: np.frombuffer(self._header, np.uint8), **self.arrays})

    @cached_property
    def _header(self) -> bytes:
        envelope = None if self.envelope is None else self.envelope.to_json()
        values = {"name": self.name, "about": self.about, "envelope": envelope, "site": self.site}
        header = _ENCODER.encode(values).encode()
        if len(header) > _MAX_HEADER:
            raise UserError(f"the names and small values of the message '{self.name}' take {len(header):,} bytes, more "
                            f"than {_MAX_HEADER:,}: leave columns with many levels out, or join clients")  # fmt: skip
        return header

    @classmethod
    def from_bytes(cls, content: bytes, sender: str) -> "Message":
        """Return the message of ``to_bytes``. Raises UserError, which names the sender, for anything else."""
        try:
            arrays = arrays_from_bytes(content)
            header = arrays.pop(_HEADER)
            if header.dtype != np.uint8 or header.ndim != 1:
                raise ValueError("its header is no text")
            return cls._from_parts(header.tobytes(), arrays)
        except Exception as error:  # foreign bytes make the readers of archives and arrays raise errors of any kind
            problem = f"{sender} sent what is no message of fcorun ({str(error)[:200]})"
            raise UserError(f"{problem}: {OTHER_VERSION}") from error

    @classmethod
    def _from_parts(cls, header: bytes, arrays: dict[str, np.ndarray]) -> "Message":
        """Return the message of a header and arrays. Raises an error for what is no message."""
        if len(header) > _MAX_HEADER:
            raise ValueError(f"its header has {len(header):,} bytes, more than {_MAX_HEADER:,}")
        values = _DECODER.decode(header.decode())
        has_keys = isinstance(values, dict) and set(values) == {"name", "about", "envelope", "site"}
        if not has_keys or not isinstance(values["about"], dict):
            raise ValueError("its header is not a mapping of 'name', 'about' (a mapping), 'envelope' and 'site'")
        envelope = None if values["envelope"] is None else Envelope.from_json(values["envelope"])
        if not isinstance(values["site"], str | None):
            raise ValueError("its header names no site")
        if not isinstance(values["name"], str) or not _NAME.fullmatch(values["name"]):
            raise ValueError(f"there is no message '{str(values['name'])[:50]}'")
        if len(arrays) > _MAX_ARRAYS:
            raise ValueError(f"it has more than {_MAX_ARRAYS} arrays")
        for name, array in arrays.items():
            if array.dtype.kind not in _KINDS:
                raise ValueError(f"its array '{name[:50]}' holds no numbers")
        return cls(values["name"], values["about"], arrays, envelope, values["site"])


def number_request(message: Message, run: str, number: int, of: Iterable[str]) -> Message:
    """Return a message with an envelope."""
    return replace(message, envelope=Envelope(run, number, tuple(sorted(of))))


@contextmanager
def describing_damage(problem: str) -> Iterator[None]:
    """Raise UserError, which begins with ``problem``, for an error of reading the content of a message."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{problem} ({_describe_damage(error)}): {OTHER_VERSION}") from error


def _describe_damage(error: Exception) -> str:
    """Return what is wrong with the content of a message, without Python's own words for it."""
    if isinstance(error, KeyError):
        return f"it lacks '{str(error.args[0])[:50]}'" if error.args else "it lacks a part"
    is_told = isinstance(error, ValueError) and not isinstance(error, UnicodeError)
    return first_line(error) if is_told else "its values have other types"


def _refuse_number(text: str) -> None:
    raise ValueError(f"its header has the number {text[:50]}")


def _read_float(text: str) -> float:
    """Return the number of a text of JSON. Raises ValueError for one beyond all floats, such as 1e999."""
    number = float(text)
    if math.isinf(number):
        _refuse_number(text)
    return number


_ENCODER = json.JSONEncoder(allow_nan=False, sort_keys=True)
_DECODER = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_read_float)
