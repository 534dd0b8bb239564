"""What synthetic data sets have in common: clients of the same size, and regression on features of different means."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fcorun.datasets.base import FederatedData, stream
from fcorun.datasets.population import Population
from fcorun.errors import UserError
from fcorun.system.arrays import aligned

Draw = Callable[[str, int], tuple[np.ndarray, np.ndarray]]


class Clients(Protocol):
    """The options that data sets of ``linear`` have in common."""

    @property
    def clients(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def validation_samples(self) -> int: ...
    @property
    def test_samples(self) -> int: ...
    @property
    def mean_scale(self) -> float: ...
    @property
    def seed(self) -> int: ...


def linear(name: str, weights: np.ndarray, of: Clients, scales: np.ndarray | float = 1.0) -> FederatedData:
    """y = <x, weights> + b + eps with x = scales * (mu_m + delta); b, delta, eps ~ N(0, 1), mu_m ~ N(0, mean_scale^2).

    ``samples`` rows of raveled float32 examples for each client, who draws its mu_m once, and ``validation_samples``
    and ``test_samples`` rows with the same mu_m; the training rows do not depend on their numbers. ``name`` starts the
    random numbers.
    """
    truth, features = stream(of.seed, name, "truth"), weights.size
    bias = truth.standard_normal(dtype=np.float32)
    means = truth.standard_normal((of.clients, 1, features), dtype=np.float32) * np.float32(of.mean_scale)

    def draw(part: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(of.seed, name, part)
        x = aligned((of.clients, rows, features), np.float32)
        rng.standard_normal(out=x, dtype=np.float32)
        x += means
        x *= np.float32(scales)
        x = x.reshape(-1, features)
        return x, x @ weights.ravel() + bias + rng.standard_normal(len(x), dtype=np.float32)

    shape = weights.shape if weights.ndim > 1 else ()
    truth_of = {"weights": weights, "bias": np.asarray(bias)}
    return alike(draw, of.clients, (of.samples, of.validation_samples, of.test_samples), truth=truth_of, shape=shape)


def alike(draw: Draw, clients: int, rows: tuple[int, int, int], **fields: Any) -> FederatedData:
    """Data of clients with as many ``rows`` each, of training, validation and test. ``draw(part, rows)`` gives x and y
    of so many rows of each, in their order; ``fields`` are further ones of FederatedData."""
    samples, validation_samples, test_samples = rows
    x, y = draw("training", samples)
    x_val, y_val = draw("validation", validation_samples) if validation_samples else (None, None)
    x_test, y_test = draw("test", test_samples) if test_samples else (None, None)
    each, names = np.arange(clients + 1), tuple(f"client{m}" for m in range(clients))
    return FederatedData(
        x=x,
        y=y,
        offsets=each * samples,
        x_val=x_val,
        y_val=y_val,
        offsets_val=each * validation_samples if validation_samples else None,
        x_test=x_test,
        y_test=y_test,
        clients_test=np.repeat(names, test_samples) if test_samples else None,
        clients=names,
        **fields,
    ).validate()


def check_nonzeros(of: Any, *keys: str) -> None:
    """Raises UserError where one of these options of a data set asks for more coefficients than it has ``features``."""
    for key in keys:
        if (getattr(of, key) or 0) > of.features:
            raise UserError(f"data.{key}={getattr(of, key)} is more than data.features={of.features}: "
                            f"give at most {of.features}")  # fmt: skip


def sampled(population: Population, evaluated: int, **fields: Any) -> FederatedData:
    """Data of a population: the rows of its first ``evaluated`` clients are what losses are measured on, those of as
    many clients who never train the validation rows; ``fields`` are further ones of FederatedData."""
    some = min(evaluated, population.clients)
    (x, y), (x_val, y_val) = population.rows(0, some), population.rows(population.clients, some)
    if fields.get("task", "regression") != "regression":
        y, y_val = y.astype(np.int32), y_val.astype(np.int32)
    each, held = np.arange(some + 1) * population.samples, np.arange(population.clients, population.clients + some)
    told = f"training figures are of {some:,} of {population.clients:,} clients, validation of {some:,} who never train"
    return FederatedData(
        x=x,
        y=y,
        offsets=each,
        x_val=x_val,
        y_val=y_val,
        clients_val=np.repeat(held.astype(str), population.samples),
        population=population,
        remarks=(told,),
        **fields,
    ).validate()
