"""Compressors: their moments, what clients remember, the bytes of messages, and runs with each of them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import choice_names, engine_of, fails, plugin_class, plugin_of, small, small_for, traits_of, verify

from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.algorithms import AlgorithmCase, check_reaches_optimum
from fcorun.methods.communication import QSGD, HalfPrecision, RandomK, ScaledSign, TopK
from fcorun.methods.communication.compressor import Compressor
from fcorun.methods.communication.sparsifier import find_largest


def uplink_of(name, *overrides) -> Any:
    return prepare(small("algo=fedavg", f"uplink={name}", *overrides)).uplink


COMPRESSORS = [name for name in choice_names("uplink") if issubclass(plugin_class("uplink", name), Compressor)]
UNBIASED = [name for name in COMPRESSORS if plugin_of("uplink", name).unbiased]
FEEDBACKS = [(name, feedback) for name in COMPRESSORS for feedback in ("ef", "ef21")]
FEEDBACKS += [(name, "diana") for name in UNBIASED]
VECTOR = jnp.asarray(np.random.default_rng(0).normal(size=30) * np.geomspace(0.01, 3, 30), jnp.float32)
KEYS = jax.random.split(jax.random.key(1), 20_000)


def sent_by(channel, uploads):
    """Return what the server gets for a client's uploads, one after the other, and the client's memory at the end."""
    step = jax.jit(channel.send)
    memory, sent = channel.client_memory(uploads[0]), []
    for key, upload in zip(KEYS, uploads, strict=False):
        message, memory = step(upload, memory, key)
        sent.append(message)
    return sent, memory


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_error_is_within_its_bound(name):
    channel = uplink_of(name)
    messages = np.asarray(jax.vmap(lambda key: channel.compress(VECTOR, key))(KEYS), float)
    errors = ((messages - np.asarray(VECTOR)) ** 2).sum(axis=1) / (np.asarray(VECTOR) ** 2).sum()
    deviation = errors.std() / np.sqrt(len(KEYS))
    assert 0 < errors.mean() <= channel.error_bound(VECTOR.size) + 4 * deviation + 1e-7
    if channel.unbiased:
        standard_error = messages.std(axis=0) / np.sqrt(len(KEYS))
        assert (np.abs(messages.mean(axis=0) - VECTOR) <= 5 * standard_error + 1e-6).all()
    else:
        assert channel.error_bound(VECTOR.size) < 1


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_vector_of_zeros_stays_zero(name):
    np.testing.assert_allclose(uplink_of(name).compress(0 * VECTOR, KEYS[0]), 0 * VECTOR)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_was_sent_and_what_is_owed_are_all_uploads(name):
    with jax.enable_x64(True):
        uploads = [jnp.asarray(np.random.default_rng(i).normal(size=30)) for i in range(20)]
        sent, (owed,) = sent_by(uplink_of(name, "uplink.feedback=ef"), uploads)
        np.testing.assert_allclose(sum(sent) + owed, sum(uploads), atol=1e-12)


@pytest.mark.parametrize(("name", "feedback"), [pair for pair in FEEDBACKS if pair[1] != "ef"])
def test_a_constant_upload_arrives_whole_in_the_end(name, feedback):
    """The compressed difference to the memory vanishes, so that a point is sent without an error in the end."""
    with jax.enable_x64(True):
        upload = jnp.asarray(VECTOR, jnp.float64)
        sent, (memory,) = sent_by(uplink_of(name, f"uplink.feedback={feedback}"), [upload] * 600)
        assert jnp.linalg.norm(sent[0] - upload) > 1e-6
        for end in (sent[-1], memory):
            np.testing.assert_allclose(end, upload, atol=1e-6)


@pytest.mark.parametrize("format_", ["float16", "bfloat16"])
@pytest.mark.parametrize("type_", ["float32", "float64"])
def test_half_precision_rounds_as_numpy_does(format_, type_, x64):
    random = np.random.default_rng(0)
    numbers = random.normal(size=2000) * 10.0 ** random.uniform(
        -9, 6, 2000
    )  # of subnormal ones and too large ones, too
    numbers = numbers.astype(type_)
    largest = float(jnp.finfo(format_).max)
    expected = np.clip(numbers, -largest, largest).astype(jnp.dtype(format_)).astype(type_)
    sent = jax.jit(lambda vector: HalfPrecision(format=format_).compress(vector, KEYS[0]))(numbers)
    np.testing.assert_array_equal(sent, expected)


@pytest.mark.parametrize("name", UNBIASED)
def test_a_difference_to_a_memory_arrives_without_bias(name):
    channel = uplink_of(name, "uplink.feedback=diana")
    memory = [0.5 * VECTOR[::-1]]
    messages = np.asarray(jax.vmap(lambda key: channel.send(VECTOR, memory, key)[0])(KEYS), float)
    standard_error = messages.std(axis=0) / np.sqrt(len(KEYS))
    assert (np.abs(messages.mean(axis=0) - VECTOR) <= 5 * standard_error + 1e-6).all()


@pytest.mark.parametrize(("fraction", "size"), [(1.0, 10**6), (1.0, 10**8), (0.5, 2 * 10**6), (0.1, 10**7)])
def test_large_uploads_are_counted_without_an_excess(fraction, size):
    channel = RandomK(fraction=fraction)
    for count in (jax.jit(lambda f: replace(channel, fraction=f).count(size))(fraction), channel.count(size)):
        assert count == round(fraction * size)
    assert channel.sent_bits(size, 1) == round(fraction * size)


@pytest.mark.parametrize(
    ("channel", "bits"),
    [
        (HalfPrecision(format="float16"), 30 * 16),
        (HalfPrecision(format="bfloat16"), 30 * 16),
        (uplink_of("natural"), 30 * 9),
        (QSGD(levels=15), 32 + 30 * 5),
        (QSGD(levels=1), 32 + 30 * 2),
        (ScaledSign(), 32 + 30),
        (TopK(fraction=0.1), 3 * 64),
        (TopK(fraction=0.01), 64),
        (RandomK(fraction=0.5), 15 * 32),
    ],
)
def test_the_bytes_of_a_message_by_hand(channel, bits):
    upload = {"weights": VECTOR, "elapsed": jnp.zeros(()), "bias": jnp.zeros(1)}
    assert channel.upload_bytes(upload, 4 * 32) == -(-bits // 8) + 4 + 4


def test_uploads_that_an_algorithm_encodes_itself_are_not_compressed():
    """A byte a number, less what compressing numbers of four bytes saves, would be none at all."""
    with fails("the upload_bytes of the algorithm are 31 for arrays of 120", "give uplink=identity"):
        TopK(fraction=0.1).upload_bytes({"weights": VECTOR, "bias": jnp.zeros(1)}, 31)
    assert TopK(fraction=0.1).upload_bytes({"weights": VECTOR, "mark": jnp.zeros(())}, 120) == 24  # no mark is sent


def test_natural_compression_leaves_what_is_not_finite():
    """A finite message would hide that a client has diverged."""
    vector = jnp.array([np.inf, -np.inf, np.nan, 1])
    np.testing.assert_array_equal(uplink_of("natural").compress(vector, KEYS[0]), vector)


def test_numbers_alone_are_sent_as_they_are():
    upload = {"dual": VECTOR, "elapsed": jnp.asarray(0.1), "matrix": VECTOR.reshape(5, 6)}
    channel = TopK(fraction=0.1, feedback="none")
    message, memory = channel.send(upload, channel.client_memory(upload), KEYS[0])
    assert memory is None
    assert message["elapsed"] == upload["elapsed"]
    assert [int((message[name] != 0).sum()) for name in ("dual", "matrix")] == [3, 3]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("count", [1, 3, 7, 50])
def test_the_largest_are_those_of_a_stable_sort(dtype, count):
    with jax.enable_x64(True):
        values = np.random.default_rng(count).integers(0, [9, 2**31], size=(25, 2)).ravel().astype(dtype)
        largest = np.argsort(-values.astype(float), kind="stable")[:count]
        mask = find_largest(jnp.asarray(values), jnp.asarray(float(count)))
        assert np.flatnonzero(mask).tolist() == sorted(largest.tolist())


@pytest.mark.slow
def test_all_numbers_are_the_identity_to_the_bit():
    options = ("algo=fedavg", "precision=float64", "rounds=3", "eval_every=3", "clients_per_round=null")
    ends = []
    for uplink in (("uplink=identity",), ("uplink=topk", "uplink.fraction=1", "uplink.feedback=none")):
        config = small(*options, *uplink)
        with jax.enable_x64(True):
            *_, end = engine_of(config).run([prepare(config).numbers()])
        ends.append(end.solution)
    for name, value in ends[0].items():
        np.testing.assert_array_equal(ends[1][name], value)


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.CHANNEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_has_the_properties(name, check):
    case = communication.CommunicationCase("uplink", name)
    verify(check, case)


def exact_with_compression():
    """Return the names of algorithms that promise the optimum, with the feedback that each of them accepts."""
    pairs = []
    for name in choice_names("algo"):
        traits = traits_of(name)
        has_server = traits.hierarchy != "graph"
        if has_server and traits.exact and not (traits.needs_whole_messages or traits.feedback):
            pairs.append((name, "ef" if traits.uploads == "increments" else "ef21"))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feedback"), exact_with_compression())
def test_what_is_exact_stays_exact_with_compression(name, feedback):
    overrides = ("uplink=topk", "uplink.fraction=0.7", f"uplink.feedback={feedback}")
    check_reaches_optimum(AlgorithmCase(name, overrides))


@pytest.mark.slow
def test_refusals():
    with fails("algo=local trains no model for all clients that uploads would change: leave uplink=topk out"):
        prepare(small("algo=local", "uplink=topk"))
    with fails("algo=newton needs uploads as they are", "leave uplink=topk out"):
        prepare(small_for("newton", "uplink=topk"))
    with fails("algo=fedcomposite needs uploads as they are"):
        prepare(small_for("fedcomposite", "uplink=float16"))
    with fails("algo=fedsplit uploads points", "uplink.feedback=ef21"):
        prepare(small_for("fedsplit", "uplink=topk", "uplink.feedback=ef"))
    with fails("the server of algo=scaffold adds up increments", "uplink.feedback=ef"):
        prepare(small_for("scaffold", "uplink=topk", "uplink.feedback=ef21"))
    prepare(small_for("scaffold", "uplink=topk", "uplink.feedback=ef"))
    with fails("uplink.feedback=diana needs an unbiased compressor", "uplink.feedback=ef21"):
        prepare(small_for("fedavg", "uplink=sign", "uplink.feedback=diana"))
    with fails("uplink.fraction=2", "between 0 and 1"):
        prepare(small_for("fedavg", "uplink=randk", "uplink.fraction=2"))
    with fails("uplink.fraction=0", "positive"):
        prepare(small_for("fedavg", "uplink=topk", "uplink.fraction=0"))
    on_clients = ("reg=simplex", "reg.applied_by=client", "clients_per_round=null")
    for section in ("uplink", "downlink"):
        with fails(f"{section}=topk moves models out of the set of reg=simplex", "reg.applied_by=both"):
            prepare(small_for("fedmid", *on_clients, f"{section}=topk"))
    prepare(small_for("fedmid", "reg=simplex", "uplink=topk"))
    for section in ("uplink", "downlink"):
        with fails("moves models out of the set of reg=simplex", "server of algo=fsvrg applies no psi"):
            prepare(small_for("fsvrg", "reg=simplex", f"{section}=topk"))
    with fails("uplink.levels=0"):
        prepare(small_for("fedavg", "uplink=qsgd", "uplink.levels=0"))
