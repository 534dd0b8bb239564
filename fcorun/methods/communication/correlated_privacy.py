"""Gaussian noise that is correlated between rounds, so that most of it cancels in the sum of all messages so far.

Round r adds row r of B z to the sum of messages of its clients, for independent z with a number for each round, or for
each node of a tree. With C B = I, all that the server sends follows from C g + z, for the sums g of the rounds, and
costs what one Gaussian mechanism does, whatever clients answer to noisy models (Denisov et al. 2022, theorem 2.1, arXiv
2202.08312). The sensitivity is the most by which the clipped messages of one client change C g. A client takes turns
with others: from one participation to the next are at least ``separation`` rounds.
"""

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.cohorts import read_separation
from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.methods.communication.privacy import ClippedPrivacy
from fcorun.methods.problem.problem import fold_key


@dataclass(frozen=True, kw_only=True)
class CorrelatedPrivacy(ClippedPrivacy):
    """Noise of a trusted server that is correlated between rounds, for clients that take turns."""

    @abstractmethod
    def find_sensitivity(self, rounds: int, separation: int) -> float:
        """Return the sensitivity of so many rounds, at least one, to the messages of a client of norms up to 1."""

    @property
    def correlates_rounds(self):
        return True

    def check(self, plugins, names, settings):
        super().check(plugins, names, settings)
        if read_separation(settings.clients_per_round) == 1:
            raise UserError(f"`privacy={names['privacy']}` counts on clients that take turns, so that each takes part "
                            "seldom: give `clients_per_round=cyclic:0.1`, a tenth of the clients in each round, or "
                            "`privacy=gaussian`")  # fmt: skip

    def count_rounds(self, rounds, clients_per_round, times):
        assert times == 1  # at one server, once in a round
        if rounds == 0:
            return 0, 1.0
        return 1, self.find_sensitivity(rounds, read_separation(clients_per_round))


@dataclass(frozen=True, kw_only=True)
class TreePrivacy(CorrelatedPrivacy):
    """Noise of a binary tree, whose nodes have the sums of the messages of 1, 2, 4, ... rounds.

    The first r rounds are parted into one node for each binary digit 1 of r, and tree(r) is the sum of the noises of
    these nodes, each of the deviation ``noise`` * ``clip`` times the largest weight of a client in the mean. Round r
    adds tree(r) - tree(r - 1), so that the sum of r messages has the noise of at most log2(r) + 1 nodes. An estimate by
    all nodes below these (Honaker) would have down to half the variance, and need the noise of all of them in each
    round.
    """

    source = "DP-FTRL of @kairouz2021 without restarts, with the account of @balle2018"

    def draw_noise(self, message, key, number):
        end = jnp.asarray(number, jnp.int32) + 1
        level = jax.lax.population_count(end ^ (end - 1)) - 1  # of the largest node that ends with this round

        def draw_node(level, end):
            return self.draw_normal(message, fold_key(fold_key(key, level), end))

        def remove_node(lower, noise):  # of those that part the rounds before
            return jax.tree.map(jnp.subtract, noise, draw_node(lower, end - (1 << lower)))

        return jax.lax.fori_loop(0, level, remove_node, draw_node(level, end))

    def sum_noise(self, count):
        return math.sqrt(count.bit_count())

    def find_sensitivity(self, rounds, separation):
        """Return an upper bound of the sensitivity: the root of the sum of n^2 over all nodes that a sum needs.

        A client takes part n times in a node, at most once in ``separation`` of the node's rounds, rounded up, and so
        in all nodes of a level together. The squares are largest where its nodes are full, one after the other. A sum
        needs every other node of a level, those that begin an even number of nodes after the first round.
        """
        squares = 0
        for level in range(rounds.bit_length()):
            n_nodes = (rounds // 2**level + 1) // 2
            most_in_node = math.ceil(2**level / separation)
            n_full, rest = divmod(math.ceil(rounds / separation), most_in_node)
            squares += min(n_full, n_nodes) * most_in_node**2
            if n_full < n_nodes:
                squares += rest**2
        return math.sqrt(squares)


@dataclass(frozen=True, kw_only=True)
class BandedPrivacy(CorrelatedPrivacy):
    """Noise by a banded Toeplitz matrix: a round adds its own noise, and takes back parts of those before.

    The coefficients of the bands are those of sqrt(1 - x): 1, -1/2, -1/8, -1/16, ... Each noise has the deviation
    ``noise`` * ``clip`` times the largest weight of a client in the mean. The sum of the messages of r rounds has noise
    of a variance that grows with log(r) in the first ``bands`` rounds, and then slowly, by r / (pi ``bands``).

    Attributes:
        bands: the number of rounds whose noises a round adds or takes back, each drawn anew. More bands leave less
            noise in sums of many rounds, need more noise for an epsilon, and take longer; 1 is ``privacy=gaussian``.
    """

    source = "BISR of @kalinin2026, with the sensitivity of @kalinin2024 and the account of @balle2018"
    choices = ("clip", "bands")

    bands: Annotated[Count, "fixed in a program"] = 16

    def draw_noise(self, message, key, number):
        coefficients = jnp.asarray(_expand_root(self.bands), jnp.float32)

        def add_lag(lag, noise):
            drawn = self.draw_normal(message, fold_key(key, number - lag))
            return jax.tree.map(lambda total, new: total + coefficients[lag].astype(new.dtype) * new, noise, drawn)

        first = self.draw_normal(message, fold_key(key, number))
        return jax.lax.fori_loop(1, jnp.minimum(number + 1, self.bands), add_lag, first)

    def sum_noise(self, count):
        # what is left in the sum: of the noise of the last round, of that before, ..., and of each with all its bands
        kept = np.cumsum(_expand_root(min(self.bands, count)))
        return math.hypot(np.linalg.norm(kept), math.sqrt(count - len(kept)) * kept[-1])

    def find_sensitivity(self, rounds, separation):
        """Return the norm of the sum of the columns 0, b, 2b, ... of C, for the separation b.

        C is a Toeplitz matrix whose coefficients c fall and are positive. So the product of two columns s < t, the sum
        of c_m c_(m + t - s) over m < R - t, is the larger the smaller t and t - s are, and no other columns with this
        separation have larger products, each with each.
        """
        return float(_find_banded_sensitivity(self.bands, rounds, separation))


def _expand_root(count: int) -> np.ndarray:
    """Return the first coefficients of the power series of sqrt(1 - x), (count,)."""
    lags = np.arange(1, count)
    return np.append(1.0, np.cumprod((2 * lags - 3) / (2 * lags)))


@functools.lru_cache(maxsize=2**10)
def _find_banded_sensitivity(bands: int, rounds: int, separation: int) -> float:
    """Return ``BandedPrivacy.find_sensitivity``."""
    from scipy.signal import lfilter  # takes long to import

    impulse = np.zeros(math.ceil(rounds / separation) * separation)
    impulse[0] = 1
    column = np.asarray(lfilter([1], _expand_root(bands), impulse))
    column_sums = column.reshape(-1, separation).cumsum(axis=0).ravel()[:rounds]  # in row n: of c_n, c_(n - b), ...
    return float(np.linalg.norm(column_sums))
