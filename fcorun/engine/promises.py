"""Promises from which a run's privacy loss is printed, tried on made-up messages and clients before the first round.

They are a mechanism's, that messages are bounded and rounds have unlike noise, and those of an algorithm's traits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import is_of_fcorun, numeric_fields
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.engine.device_rows import first_row, row_extras
from fcorun.engine.federation import Federation
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, PyTree
from fcorun.methods.communication.privacy import Privacy, join_message, split_message
from fcorun.methods.problem.operation_counts import count_operations, mark, to_arrays
from fcorun.methods.problem.problem import Problem, Vector

_DTYPE = "float64"  # rounding hides a small step in float32


@dataclass(frozen=True, kw_only=True)
class BlindProblem(Problem):
    """A problem whose gradients depend neither on rows nor on the point."""

    @classmethod
    def of(cls, problem: Problem) -> "BlindProblem":
        return cls(**{field.name: getattr(problem, field.name) for field in fields(Problem)})

    def gradient(self, w: Vector, batch: Any) -> Vector:
        return mark(w.map(_unlike_numbers), batch.counts)


def _unlike_numbers(array: Any) -> jax.Array:
    """Return unlike numbers in (0, 0.02), of the shape and the type of an array."""
    return 0.01 + 0.01 * jnp.sin(jnp.arange(array.size, dtype=array.dtype)).reshape(array.shape)


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
    leaves, structure = jax.tree.flatten(algorithm.init(replace(problem, key_bits=(0, 0)), w0))
    for k, leaf in enumerate(leaves):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaves[k] = leaf * (1 + 0.1 * k)
    return jax.tree.unflatten(structure, leaves)


def check_promises(federation: Federation, privacy: Privacy, names: Mapping[str, str]) -> None:
    """Refuse a private run of a user's mechanism, or algorithm, that breaks what it promises. Raises UserError.

    ``privacy`` has all of its numbers, and ``names`` are those of the plug-ins by section.
    """
    if not privacy.acts:
        return
    broken = {}
    if not is_of_fcorun(privacy):
        broken["privacy"] = explain_clip(privacy) or explain_noise(privacy)
    if not is_of_fcorun(federation.algorithm):
        broken["algo"] = _explain_traits(federation)
    for section, sentence in broken.items():
        if sentence:
            option = f"{section}={names[section]}"
            raise UserError(f"`{option}`: {sentence}; `fcorun check {option}` tries what it promises")


def explain_clip(privacy: Privacy) -> str:
    """Return why long messages of one direction are not clipped to one, in proportion to the ``clip``, or ""."""
    if privacy.hides_rows:
        return ""  # gradients are clipped in place of messages

    def clip_long(privacy: Privacy, length: float) -> np.ndarray:
        with use_precision(_DTYPE):
            message = {"weights": length * _unlike_numbers(jnp.zeros(40)), "bias": jnp.asarray(-length)}
            clipped = privacy.clip_message(message)
            return np.append(clipped["weights"], clipped["bias"])

    clipped, of_longer = clip_long(privacy, 1e9), clip_long(privacy, 1e12)
    if not np.allclose(clipped, of_longer, rtol=1e-6):
        lengths = " and ".join(f"{np.linalg.norm(message):.3g}" for message in (clipped, of_longer))
        return f"messages of the lengths 1e9 and 1e12 should be clipped to one length, and are {lengths} long"
    if "clip" in numeric_fields(privacy):
        halved = clip_long(replace(privacy, clip=privacy.clip / 2), 1e9)  # type: ignore[attr-defined, call-arg]
        if not np.allclose(halved, clipped / 2, rtol=1e-6):
            return "half of the clip should make clipped messages half as long, and does not"
    return ""


def explain_noise(privacy: Privacy) -> str:
    """Return why the noise of two rounds hides nothing, since their difference has none, or ""."""
    message = {"weights": np.zeros(1000, np.float32), "bias": np.zeros((), np.float32)}
    one, next_one = (np.asarray(privacy.draw_noise(message, (3, 5), number)["weights"]) for number in (4, 5))
    if not (one.std() > 0 and next_one.std() > 0):
        return "the numbers of a message should have noise that differs, and have none or the same"
    if abs(correlation := np.corrcoef(one, next_one)[0, 1]) < 0.99:
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

    Of two clients with as many steps, one has other rows, fewer and unknown ones, and an unknown state.
    """
    algorithm = federation.algorithm
    names = algorithm.traits.public_uploads or ()
    upload = federation.shapes.uploads[-1]
    for name in names:
        if not isinstance(upload, dict) or name not in upload:
            return (f"its traits say public_uploads={names!r}, and its uploads have no entry '{name}': name entries of "
                    "the dictionary that local() returns, or give public_uploads=()")  # fmt: skip

    def upload_of(client: LocalData, scale: float) -> PyTree:
        server, state = changed_states(algorithm, federation.problem, _DTYPE)
        state = jax.tree.map(lambda v: scale * v if jnp.issubdtype(v.dtype, jnp.floating) else v, state)
        problem = federation.problem.for_side("client")
        return algorithm.local(problem, algorithm.broadcast(server), state, client)[0]

    with use_precision(_DTYPE):
        one = compute_once(upload_of, _make_client(federation, (2, 3)), 1.0)
        other = compute_once(upload_of, _make_client(federation, (2, 1), number=1, is_blind=True), np.nan)
    for name in names:
        if not jax.tree.all(jax.tree.map(np.array_equal, one[name], other[name])):
            return (f"its traits say that the entry '{name}' of uploads follows from the number of local steps alone, "
                    "and it differs between clients, and would be sent as it is: leave it out of "
                    "public_uploads")  # fmt: skip
    return ""


def explain_gradient_steps(federation: Federation) -> str:
    """Return why rows reach what a client sends and keeps in two steps not by one gradient in each alone, or ""."""
    return _explain_rows(*_compute_blind_steps(federation, 2), "gradient_steps")


def explain_gradient_uploads(federation: Federation) -> str:
    """Return why what a client sends after one step is not -``client_lr`` times the gradient of the step, or ""."""
    rate = getattr(federation.algorithm, "client_lr", None)
    if rate is None:
        return "its traits say gradient_uploads, and it has no client_lr, by which noise would be scaled: name it so"
    (upload, _), n_gradients, n_passes = _compute_blind_steps(federation, 1)
    if broken := _explain_rows((upload,), n_gradients, n_passes, "gradient_uploads"):
        return broken
    message = jax.tree.leaves(split_message(upload, federation.algorithm.traits)[0])
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


def _compute_blind_steps(federation: Federation, n_steps: int) -> tuple[tuple[PyTree, PyTree], int, int]:
    """Return upload and state of a client that knows nothing of its rows but the gradients of its steps, and counts.

    The counts are the gradients taken for each row of a step, and those of all rows.
    """
    algorithm, problem = federation.algorithm, BlindProblem.of(federation.problem).for_side("client")

    def answer() -> PyTree:
        client = replace(_make_client(federation, (n_steps, 3), is_blind=True), full_batch_steps=None)
        server, state = changed_states(algorithm, problem, _DTYPE)
        received = algorithm.broadcast(server)
        return count_operations(lambda: algorithm.local(problem, received, state, client))

    with use_precision(_DTYPE):
        sent, counts = compute_once(answer)
    return sent, counts[0] / (3 * n_steps), counts[1]


def _explain_rows(sent: PyTree, n_gradients: float, n_passes: float, trait: str) -> str:
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sent)):
        return ("its upload or its client's state depends on rows besides the gradients of steps, which privacy of "
                f"rows would not hide: leave {trait} out of its traits")  # fmt: skip
    if n_gradients != 1 or n_passes != 0:
        return (f"local steps should take one gradient of each of their rows, and take {n_gradients:g} and "
                f"{n_passes:g} of all rows: leave {trait} out of its traits")  # fmt: skip
    return ""


def _make_client(federation: Federation, shape: tuple[int, int], number: int = 0, is_blind: bool = False) -> LocalData:
    """Return the data of the client ``number`` with K minibatches of B copies of a row, ``shape`` (K, B).

    The numbers of a blind client's rows are NaN, and its class is another one.
    """
    x, y = first_row(federation.data, _DTYPE)
    columns = row_extras(federation.data.train.local.take(slice(1)))
    weight, offset = (jnp.ones(1, _DTYPE) if name in columns else None for name in ("weight", "offset"))
    if is_blind:
        y = y if jnp.issubdtype(y.dtype, jnp.floating) else jnp.where(y > 0, 0, 1)
        x, y, weight, offset = jax.tree.map(_fill_with_nan, (x, y, weight, offset))
    rows = jnp.zeros(shape, jnp.int32)
    client = LocalData(
        x,
        y,
        rows,
        _DTYPE,
        weight=weight,
        offset=offset,
        full_batch_steps=shape[0] if federation.schedule.full_batch_steps else None,
        client_number=number,
        key_bits=(0, number),
    )
    return client.with_whole_data(rows.ravel())


def _fill_with_nan(array: jax.Array) -> jax.Array:
    return jnp.full_like(array, np.nan) if jnp.issubdtype(array.dtype, jnp.floating) else array


def _is_close(actual: Any, expected: Any) -> bool:
    return np.shape(actual) == np.shape(expected) and np.allclose(actual, expected, rtol=1e-6, atol=1e-9)
