"""Messages as bytes: what was sent arrives, and any other bytes are refused by a sentence."""

import io
import zipfile

import numpy as np
import pytest
from helpers import fails

from fcorun.base.errors import UserError
from fcorun.base.records.formats import npz_bytes
from fcorun.sites.transport.messages import Message, number_request

REQUEST = number_request(
    Message("round", {"round": 3, "strengths": [0.1, 0.5]}, {"model": np.arange(5.0), "mask": np.array([True, False])}),
    run="a", number=7, of=["north", "east"],
)  # fmt: skip
ANSWER = Message("round", {}, {"sums": np.ones((2, 3), np.float32), "rows": np.array(40)}, REQUEST.envelope, "north")


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with random damages: changed, removed, repeated and inserted bytes, and changed characters."""
    array = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        first = int(rng.integers(len(array)))
        length = int(min(rng.geometric(0.05), len(array) - first))
        kind = rng.integers(6)
        if kind == 0:
            array[first] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del array[first : first + length]
        elif kind == 2:
            array[first:first] = array[first : first + length]
        elif kind == 3:
            array[first:first] = rng.bytes(length)
        elif kind == 4:
            del array[first + 1 :]
        else:  # in headers, which are texts
            array[first] = rng.choice(list(b'0123456789"{}[](),:-eEfiub<>|OVS'))
    return bytes(array)


def with_valid_checksums(content: bytes, rng: np.random.Generator) -> bytes:
    """Return an archive whose members are damaged, and whose checksums are right, so that the damage is read."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(out, "w") as damaged:
        chosen = rng.choice(archive.namelist())
        for name in archive.namelist():
            member = archive.read(name)
            damaged.writestr(zipfile.ZipInfo(name), mutate(member, rng) if name == chosen else member)
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("message", [REQUEST, ANSWER], ids=["request", "answer"])
@pytest.mark.parametrize("damage", [mutate, with_valid_checksums])
def test_a_thousand_damaged_messages_are_messages_or_are_refused(message, damage):
    content, rng = message.to_bytes(), np.random.default_rng(0)
    refused = accepted = 0
    for _ in range(500):
        damaged = damage(content, rng)
        try:
            read = Message.from_bytes(damaged, "the server")
        except UserError as error:
            refused += str(error).startswith("the server sent")
        else:
            assert Message.from_bytes(read.to_bytes(), "the server").to_bytes() == read.to_bytes()
            accepted += 1
    assert refused + accepted == 500
    assert refused > 250


@pytest.mark.parametrize("message", [REQUEST, ANSWER, Message("describe")])
def test_a_message_arrives_as_it_was_sent(message):
    read = Message.from_bytes(message.to_bytes(), "the server")
    assert (read.name, read.about, read.envelope) == (message.name, message.about, message.envelope)
    assert read.site == message.site
    assert {name: array.tolist() for name, array in read.arrays.items()} == {
        name: array.tolist() for name, array in message.arrays.items()
    }
    assert read.to_bytes() == message.to_bytes()


def test_too_many_names_are_refused_by_the_sender():
    message = Message("describe", {"levels": "x" * 2**21})
    sentence = "the names and small values of the message 'describe' take 2,097,"
    with fails(sentence, "leave columns with many levels out"):
        message.to_bytes()


def archive_with_header(text: str) -> bytes:
    return npz_bytes({"message.json": np.frombuffer(text.encode(), np.uint8)})


@pytest.mark.parametrize(
    "header",
    [
        '{"name": "round", "about": {}}',
        '{"name": "round", "about": {}, "envelope": null}',
        '{"name": "round", "about": {}, "envelope": null, "site": 5}',
        '{"name": "round", "about": {}, "envelope": null, "site": ["north"]}',
        '{"name": "round", "about": [], "envelope": null, "site": null}',
        '{"name": "other message", "about": {}, "envelope": null, "site": null}',
        '{"name": ["round"], "about": {}, "envelope": null, "site": null}',
        '{"name": "round", "about": {"a": NaN}, "envelope": null, "site": null}',
        '{"name": "round", "about": {"a": 1e999}, "envelope": null, "site": null}',
        '{"name": "round", "about": {}, "envelope": {"run": "a", "number": -1, "of": []}, "site": null}',
        '{"name": "round", "about": {}, "envelope": {"run": "a", "number": true, "of": []}, "site": null}',
        '{"name": "round", "about": {}, "envelope": {"run": 1, "number": 1, "of": []}, "site": null}',
        '{"name": "round", "about": {}, "envelope": {"run": "a", "number": 1, "of": [2]}, "site": null}',
        '{"name": "round", "about": {}, "envelope": {"run": "a", "number": 1, "of": [], "more": 0}, "site": null}',
        "[" * 100_000,
        "5",
        '["name", "about", "envelope"]',
    ],
)
def test_a_header_of_another_form_is_refused(header):
    with pytest.raises(UserError, match="no message of fcorun"):
        Message.from_bytes(archive_with_header(header), "site 'north'")


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([1 + 2j]), np.array([(1, 2)], "i4,i4")])
def test_arrays_hold_numbers(array):
    content = Message("round", {}, {"a": array}).to_bytes()
    with pytest.raises(UserError, match="array 'a' holds no numbers"):
        Message.from_bytes(content, "site 'north'")


def test_arrays_of_objects_are_not_unpickled():
    content = npz_bytes({"message.json": np.array([{"a": 1}], object)})
    with pytest.raises(UserError, match="no message of fcorun"):
        Message.from_bytes(content, "site 'north'")


def test_an_archive_whose_members_share_their_bytes_is_refused():
    """Such an archive may stand for arrays that fill any memory."""
    content = bytearray(Message("round", {}, {"a": np.zeros(1000), "b": np.zeros(1000)}).to_bytes())
    end = content.rfind(b"PK\x05\x06")
    start = int.from_bytes(content[end + 16 : end + 20], "little")
    directory, n_copies = bytes(content[start:end]), 50
    content[end + 8 : end + 12] = 2 * (3 * n_copies).to_bytes(2, "little")
    content[end + 12 : end + 16] = (n_copies * len(directory)).to_bytes(4, "little")
    content[start:end] = n_copies * directory
    with pytest.raises(UserError, match="overlap"):
        Message.from_bytes(bytes(content), "site 'north'")
