"""Promises from which a run's privacy loss is printed, tried on made-up messages and clients before the first round.

They are a mechanism's, that messages are bounded and rounds have unlike noise, and those of an algorithm's traits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import is_of_fcorun
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.engine.device_rows import first_row, row_extras
from fcorun.engine.federation import Federation
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, PyTree
from fcorun.methods.communication.privacy import Privacy, find_norm, join_message, split_message
from fcorun.methods.problem.operation_counts import count_operations, mark, to_arrays
from fcorun.methods.problem.problem import KeyBits, Problem, Vector, fold_key

_DTYPE = "float64"  # rounding hides a small step in float32


@dataclass(frozen=True, kw_only=True)
class BlindProblem(Problem):
    """A problem whose gradients depend neither on rows nor on the point, if ``needs_key`` those with a key of noise."""

    needs_key: bool

    def gradient(self, w: Vector, batch: Any) -> Vector:
        if self.needs_key and batch.noise_key is None:
            return super().gradient(w, batch)
        return mark(w.map(_unlike_numbers), batch.counts)


def _unlike_numbers(array: Any) -> jax.Array:
    """Return unlike numbers between 0.005 and 0.015, of the shape and the type of an array."""
    return 0.01 + 0.005 * jnp.sin(jnp.arange(array.size, dtype=array.dtype)).reshape(array.shape)


def compute_once(function: Callable, *arguments: Any) -> Any:
    """Return the arrays that a function of these constants computes, as one program, after all of its callbacks.

    Operations one by one would be compiled one by one.
    """
    results = jax.jit(lambda: function(*arguments))()
    jax.effects_barrier()
    return results


def changed_states(algorithm: Algorithm, problem: Problem, dtype: Any) -> tuple[PyTree, PyTree]:
    """Return states of the server and a client whose numbers differ from the initial ones, and from each other's."""
    w0 = problem.initial_point(problem.zeros(dtype).map(lambda v: v + jnp.linspace(0.1, 1, v.size).reshape(v.shape)))
    leaves, structure = jax.tree.flatten(to_arrays(algorithm.init(replace(problem, key_bits=(0, 0)), w0)))
    for k, leaf in enumerate(leaves):
        if _has_fractions(leaf):
            leaves[k] = leaf * (1 + 0.1 * k)
    return jax.tree.unflatten(structure, leaves)


def check_promises(federation: Federation, privacy: Privacy, rounds: int, names: Mapping[str, str]) -> None:
    """Refuse a private run of a user's mechanism, or algorithm, that breaks what it promises. Raises UserError.

    What a plug-in may do otherwise, and still be right, is for ``fcorun check`` alone. ``privacy`` has all of its
    numbers, and ``names`` are those of the plug-ins by section.
    """
    if not privacy.acts:
        return
    broken = {}
    if not is_of_fcorun(privacy):
        broken["privacy"] = explain_clip(privacy) or explain_noise(privacy, rounds)
    if not is_of_fcorun(federation.algorithm):
        with use_precision(federation.precision):
            broken["algo"] = _explain_traits(federation)
    for section, sentence in broken.items():
        if sentence:
            option = f"{section}={names[section]}"
            raise UserError(f"`{option}`: {sentence}; `fcorun check {option}` tries what it promises")


def explain_clip(privacy: Privacy) -> str:
    """Return why messages have no bound, however long they were, or ""."""
    if privacy.hides_rows:
        return ""  # gradients are clipped in place of messages
    short, long = clipped_length(privacy, 1e15), clipped_length(privacy, 1e18)
    if long <= 1.01 * short:
        return ""
    return f"messages of the lengths 1e15 and 1e18 should be clipped to one bound, and get {short:.3g} and {long:.3g}"


def clipped_length(privacy: Privacy, length: float) -> float:
    """Return the length of a message after its clip, which is about ``length`` before."""
    with use_precision(_DTYPE):
        message = {"weights": length * _unlike_numbers(jnp.zeros(40)), "bias": jnp.asarray(-length)}
        return float(find_norm(privacy.clip_message(message)))


def explain_noise(privacy: Privacy, rounds: int) -> str:
    """Return why the noise of the first two of so many rounds hides nothing, or ""."""
    if privacy.noises_steps:
        return ""  # gradients have noise in place of messages
    message = {"weights": np.zeros(1000, np.float32), "bias": np.zeros((), np.float32)}
    noises = [np.asarray(privacy.draw_noise(message, (3, 5), number)["weights"]) for number in range(min(rounds, 2))]
    if not all(np.ptp(noise) > 0 for noise in noises):
        return "the numbers of a message should have noise that differs, and have none or the same"
    if len(noises) < 2 or abs(correlation := np.corrcoef(noises)[0, 1]) < 1 - 1e-9:
        return ""
    return ("two rounds should have unlike noise, which their difference would not cancel, and the noise of theirs has "
            f"the correlation {correlation:.3g}: fold the number of the round into the key")  # fmt: skip


def _explain_traits(federation: Federation) -> str:
    """Return which promise of an algorithm's traits, on which this privacy counts, its messages break, or ""."""
    privacy = federation.privacy
    explanations = [explain_public_uploads]
    if privacy.hides_rows:
        explanations.append(explain_gradient_steps if privacy.noises_steps else explain_gradient_uploads)
    if privacy.correlates_rounds and federation.algorithm.traits.sums_messages:
        explanations.append(explain_sums_messages)
    return next(filter(None, (explain(federation) for explain in explanations)), "")


def explain_public_uploads(federation: Federation) -> str:
    """Return why the public entries of uploads are not the same for all clients, or "".

    Two clients with as many steps have other rows, fewer of them, and another state and key.
    """
    traits, upload = federation.algorithm.traits, federation.shapes.uploads[-1]
    names = traits.public_uploads
    if not names:
        return ""
    for name in names:
        if not isinstance(upload, dict) or name not in upload:
            return (f"its traits say public_uploads={names!r}, and its uploads have no entry '{name}': name entries of "
                    "the dictionary that local() returns, or give public_uploads=()")  # fmt: skip
    answers, _ = _compute_answers(federation, federation.problem, 2, of_one_client=False)
    one, other = (split_message(upload, traits)[1] for upload, _ in answers)
    for name in names:
        if not _are_equal(one[name], other[name]):
            return (f"its traits say that the entry '{name}' of uploads follows from the number of local steps alone, "
                    "and it differs between clients, and would be sent as it is: leave it out of "
                    "public_uploads")  # fmt: skip
    return ""


def explain_gradient_steps(federation: Federation) -> str:
    """Return why rows reach what a client sends and keeps not by one gradient with noise in each step alone, or ""."""
    problem = BlindProblem(**vars(federation.problem), needs_key=True)
    answers, n_gradients = _compute_answers(federation, problem, 2, noise_key=(0, 0))
    return _explain_rows(answers, n_gradients, "gradient_steps")


def explain_gradient_uploads(federation: Federation) -> str:
    """Return why what a client sends after one step is not -``client_lr`` times the gradient of the step, or ""."""
    rate = getattr(federation.algorithm, "client_lr", None)
    if rate is None:
        return "its traits say gradient_uploads, and it has no client_lr, by which noise would be scaled: name it so"
    problem = BlindProblem(**vars(federation.problem), needs_key=False)
    answers, n_gradients = _compute_answers(federation, problem, 1)
    uploads = [upload for upload, _ in answers]
    if broken := _explain_rows(uploads, n_gradients, "gradient_uploads"):
        return broken
    message = jax.tree.leaves(split_message(uploads[0], federation.algorithm.traits)[0])
    with use_precision(_DTYPE):
        expected = [-rate * _unlike_numbers(values) for values in federation.problem.zeros(_DTYPE).values()]
    if len(message) == len(expected) and all(map(_is_close, message, expected)):
        return ""
    return ("its traits say gradient_uploads, and after one step its upload is not -client_lr times the gradient of "
            "that step, by which noise is scaled: leave gradient_uploads out of its traits")  # fmt: skip


def explain_sums_messages(federation: Federation) -> str:
    """Return why the server's state is not the sum of messages, or "": a message and its opposite leave no trace."""
    algorithm, problem = federation.algorithm, replace(federation.problem.for_side("server"), key_bits=(0, 0))
    shapes = federation.shapes.uploads[-1]

    def state_after(*factors: float) -> PyTree:
        server, _ = changed_states(algorithm, federation.problem, _DTYPE)
        for factor in factors:
            mean = jax.tree.map(lambda v: jnp.ones(v.shape, v.dtype), shapes)
            message, public = split_message(mean, algorithm.traits)
            message = jax.tree.map(lambda v, factor=factor: factor * (_unlike_numbers(v) - 0.01), message)
            server = algorithm.server(problem, server, join_message(message, public))
        return to_arrays(server)

    with use_precision(_DTYPE):
        after_both, after_nothing = compute_once(lambda: (state_after(1e3, -1e3), state_after(0, 0)))
    if jax.tree.all(jax.tree.map(_is_close, after_both, after_nothing)):
        return ""
    return ("its traits say sums_messages=True, and a message and its opposite in the next round change the server's "
            "state: leave sums_messages out of its traits")  # fmt: skip


def _explain_rows(answers: Sequence[PyTree], n_gradients: float, trait: str) -> str:
    if not _are_equal(*answers):
        return ("its upload or its client's state depends on rows besides the gradients of steps, which privacy of "
                f"rows would not hide: leave {trait} out of its traits")  # fmt: skip
    if n_gradients > 1:
        return (f"local steps should take at most one gradient of each of their rows, and take {n_gradients:g}: "
                f"leave {trait} out of its traits")  # fmt: skip
    return ""


def _compute_answers(
    federation: Federation,
    problem: Problem,
    n_steps: int,
    of_one_client: bool = True,
    noise_key: KeyBits | None = None,
) -> tuple[list[tuple[PyTree, PyTree]], float]:
    """Return upload and new state of a client for two kinds of rows, and its gradients of a row in each step.

    Unless they are ``of_one_client``, the second ones are those of a client of fewer rows, another state and key. All
    numbers are finite, and about as large as in the run, so that loops of the algorithm end as there.
    """
    algorithm = federation.algorithm

    def answer(values: dict[str, Any], rows: jax.Array, number: int) -> tuple[tuple[PyTree, PyTree], jax.Array]:
        data = LocalData(
            **values,
            rows=rows,
            dtype=_DTYPE,
            full_batch_steps=n_steps if federation.schedule.full_batch_steps else None,
            client_number=number,
            key_bits=fold_key((0, 0), number),
            noise_key=noise_key,
        ).with_whole_data(rows.ravel())
        server, state = changed_states(algorithm, federation.problem, _DTYPE)
        state = _map_fractions(lambda v: v + number * _unlike_numbers(v), state)
        received = algorithm.broadcast(server)
        return count_operations(lambda: algorithm.local(problem.for_side("client"), received, state, data))

    with use_precision(_DTYPE):
        compute = jax.jit(answer)
        x, y = first_row(federation.data, _DTYPE)
        extras = row_extras(federation.data.train.local.take(slice(1)))
        values = {"x": x, "y": y, **{name: jnp.ones(1, _DTYPE) for name in extras}}
        rows = jnp.zeros((n_steps, 3), jnp.int32)
        first, counts = compute(values, rows, 0)
        values = _map_fractions(lambda v: 0.9 * v, values) | {"x": _map_fractions(lambda v: -0.9 * v, x)}
        if not _has_fractions(y):
            values["y"] = jnp.where(y > 0, 0, 1).astype(y.dtype)
        if of_one_client:
            second, _ = compute(values, rows, 0)
        else:
            second, _ = compute(values, rows.at[:, 1:].set(-1), 1)
        jax.effects_barrier()
    return [first, second], float(counts[0] / 3 + counts[1]) / n_steps


def _map_fractions(function: Callable, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: function(leaf) if _has_fractions(leaf) else leaf, tree)


def _has_fractions(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _are_equal(one: PyTree, other: PyTree) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), one, other))


def _is_close(actual: Any, expected: Any) -> bool:
    return np.shape(actual) == np.shape(expected) and np.allclose(actual, expected, rtol=1e-6, atol=1e-9)
