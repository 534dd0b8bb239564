"""The account of Gaussian rounds, by the package dp-accounting."""

import functools
import math
import warnings
from typing import Any

import numpy as np

from fcorun.base.errors import UserError


def load_accountant() -> Any:
    """Return the package dp_accounting. Raises UserError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import dp_accounting  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("`privacy` needs the accountant dp-accounting: pip install 'fcorun[privacy]', or leave "
                        "privacy out") from error  # fmt: skip
    return dp_accounting


@functools.lru_cache(maxsize=2**14)
def count_epsilon(noise: float, delta: float, rounds: int, participation: float | None = None) -> float:
    """Return epsilon of R rounds of Gaussian noise, ``noise`` times as large as what a client can change.

    R rounds in which all clients count are one with the noise over the square root of R, whose epsilon is exact (Balle
    and Wang 2018). With ``participation``, the probability q by which a client takes part, epsilon is an upper bound by
    the distribution of the privacy loss, on a grid that is ten times finer than the loss of a round.
    """
    accountant = load_accountant()
    if rounds == 0:
        return 0.0
    if participation is None:
        return float(accountant.get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    with np.errstate(over="ignore", under="ignore"):
        loss = _loss_of_round(noise, participation).self_compose(rounds)
        return float(loss.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=64)
def _loss_of_round(noise: float, participation: float) -> Any:
    """Return the distribution of the privacy loss of a round of Gaussian noise, for clients drawn by a probability."""
    load_accountant()
    from dp_accounting.pld import privacy_loss_distribution  # pyright: ignore[reportMissingImports]

    deviation = participation * math.sqrt(math.expm1(min(noise**-2, 100)))  # of the loss, which is small
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        value_discretization_interval=min(max(0.1 * deviation, 1e-5), 1e-3),
        sampling_prob=participation,
        use_connect_dots=True,
    )


def find_noise(epsilon: float, delta: float, rounds: int, participation: float | None = None) -> float:
    """Return the least noise, rounded up to four digits, of which R rounds cost at most ``epsilon``."""
    largest = load_accountant().get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds)
    if participation is None:
        return round_up(largest)
    largest *= 1.01  # where nearly all take part, the bound is just above the exact value
    least = largest / 2  # amplification asks for less than all clients
    while count_epsilon(least, delta, rounds, participation) < epsilon:
        least, largest = least / 2, least
    from scipy.optimize import brentq

    def exceed(noise: float) -> float:
        return count_epsilon(noise, delta, rounds, participation) - epsilon

    least, largest = math.log(least), math.log(largest)
    root: Any = brentq(lambda log: exceed(math.exp(log)), least, largest, xtol=1e-4)
    return round_up(math.exp(root + 1e-4))


def round_up(value: float) -> float:
    """Round a positive number up to four digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(round(value / unit, 6)) * unit:.4g}")  # four digits stay as they are
