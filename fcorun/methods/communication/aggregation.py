"""The contract of an aggregation rule, by which a receiver makes one upload of those of its clients, and the mean.

The topology says who receives whose uploads. Rules other than the mean stay near the uploads of honest clients where
some are wrong. ``fcorun.methods.communication.robust_rules`` has those rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.cohorts import read_turn_share
from fcorun.base.config import PluginBase, Settings
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.communication.compressor import Compressor
from fcorun.methods.communication.contracts import Channel

_PARTS = 10**6  # equal parts into which uploads are divided, to find what share of the weight may be wrong


class SingleUploads(NamedTuple):
    """The uploads of S clients for ``Algorithm.server_all``, in the place of their mean.

    Attributes:
        uploads: the uploads, stacked along a leading axis S.
        weights: their weights, (S,), which sum to one.
    """

    uploads: PyTree
    weights: jax.Array


@dataclass(frozen=True)
class AggregationRule(PluginBase, ABC):
    """An aggregation rule plug-in: one upload for those of a receiver's clients. The options are the keys of its YAML.

    Attributes:
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
        divides_weights: True if two equal uploads count as much as one of them with both weights.
    """

    source: ClassVar[str]
    divides_weights: ClassVar[bool] = True

    @abstractmethod
    def combine(self, uploads: PyTree, weights: jax.Array) -> PyTree:
        """Return one upload for S uploads of real numbers, stacked along a leading axis S. Pure, and traced.

        ``weights`` (S,) sum to one. An upload of weight 0 did not arrive, and consists of zeros.
        """

    @property
    def least_uploads(self) -> int:
        """The number of uploads that the rule needs at each receiver in each round."""
        return 1

    def count_tolerated(self, n_uploads: int) -> int:
        """Return how many of so many uploads of equal weights may have any numbers, while the combination is bounded.

        0 means that a single wrong upload moves the combination without bounds.
        """
        return 0

    def find_tolerated_share(self, n_uploads: int) -> float:
        """Return the share of the weight of so many uploads that may be wrong while the combination is bounded.

        It is that of whole uploads, and, where uploads of any weights count by it, that of their parts.
        """
        tolerated = self.count_tolerated(n_uploads)
        if tolerated and self.divides_weights:
            return self.count_tolerated(_PARTS) / _PARTS
        return tolerated / n_uploads

    def check(self, plugins: Mapping[str, Any], names: Mapping[str, str], settings: Settings) -> None:
        """Refuse runs whose uploads cannot be combined by the rule, given the plug-ins and their names by section.

        Raises UserError.
        """
        algo, topology, rule = plugins["algo"], plugins["topology"], f"`aggregate={names['aggregate']}`"
        check_single_uploads(plugins, names, rule)
        if algo.has_server_all:
            raise UserError(f"the server of `algo={names['algo']}` takes single uploads, and combines them itself: "
                            f"leave {rule} out")  # fmt: skip
        if reason := algo.traits.why_means_only:
            raise UserError(f"`algo={names['algo']}` {reason}, so that {rule} would spoil it: leave `aggregate` out, "
                            "or choose another `algo`: `fcorun list algo` shows which take rules other than the "
                            "mean")  # fmt: skip
        if isinstance(plugins["uplink"], Compressor):
            raise UserError(f"`uplink={names['uplink']}` sends parts of uploads, or differences to what is remembered, "
                            f"and {rule} compares whole uploads: leave one of them out")  # fmt: skip
        if settings.frozen:
            raise UserError(f"`frozen=true` sends nothing: leave {rule} out")
        clients_per_round = settings.clients_per_round
        is_fixed = isinstance(clients_per_round, int) or read_turn_share(clients_per_round) is not None
        if self.least_uploads == 1 or not is_fixed:
            return
        if topology.edge_rounds is not None:
            raise UserError(f"{rule} needs {self.least_uploads} uploads at each edge in each round, and cohorts of "
                            f"`clients_per_round={clients_per_round}` may bring fewer: give "
                            "`clients_per_round=null`")  # fmt: skip
        if isinstance(clients_per_round, int):  # the number of clients that take turns follows from the data
            self.check_counts(np.array([clients_per_round]), names)

    def check_counts(self, counts: np.ndarray, names: Mapping[str, str]) -> None:
        """Refuse fewer uploads at a receiver than the rule needs, of ``counts`` (E,). Raises UserError."""
        fewest = int(counts.min())
        if fewest < self.least_uploads:
            raise UserError(f"`aggregate={names['aggregate']}` with these numbers needs {self.least_uploads} clients "
                            f"at a receiver, and {fewest} send uploads to one: choose other numbers (`fcorun help "
                            f"aggregate={names['aggregate']}`), or `aggregate=coordinate_median`, which takes any "
                            "number")  # fmt: skip

    def check_liars(self, counts: np.ndarray, share: float, names: Mapping[str, str]) -> None:
        """Refuse more liars than the rule claims to bear at the receiver of the fewest uploads, of ``counts`` (E,).

        ``share`` is that of the liars among all clients. Raises UserError.
        """
        claims_none = type(self).count_tolerated is AggregationRule.count_tolerated
        n_uploads = int(counts.min())
        tolerated = self.count_tolerated(n_uploads)
        if claims_none or share <= self.find_tolerated_share(n_uploads) + 1e-9:
            return
        raise UserError(f"`faults={names['faults']}` has {share * n_uploads:.3g} liars among {n_uploads} uploads of a "
                        f"receiver, and `aggregate={names['aggregate']}` bears {tolerated}: lower `faults.liars`, or "
                        "choose another rule or other numbers of it, "
                        f"`fcorun help aggregate={names['aggregate']}`")  # fmt: skip


@dataclass(frozen=True)
class WeightedMean(AggregationRule):
    """The mean of uploads by the weights of their clients in F."""

    source = "textbook"

    def check(self, plugins, names, settings):
        return  # every method takes the mean

    def combine(self, uploads, weights):
        return jax.tree.map(lambda values: jnp.tensordot(weights, values, axes=1), uploads)


def check_single_uploads(plugins: Mapping[str, Any], names: Mapping[str, str], user: str) -> None:
    """Refuse a topology or an uplink without single uploads, which ``user``, a clause, takes. Raises UserError."""
    if not plugins["topology"].gathers_uploads:
        raise UserError(f"{user} takes the uploads of several clients together, which no receiver of "
                        f"`topology={names['topology']}` has: leave one of them out, or give "
                        "`topology=star`")  # fmt: skip
    if type(plugins["uplink"]).receive is not Channel.receive:
        raise UserError(f"`uplink={names['uplink']}` changes means of uploads, and {user} takes single ones: leave "
                        "one of them out")  # fmt: skip


def check_server_all(plugins: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Refuse an algorithm of ``server_all`` where no server has the single uploads of a round. Raises UserError."""
    if not plugins["algo"].has_server_all:
        return
    check_single_uploads(plugins, names, f"`algo={names['algo']}`")
    if plugins["topology"].edge_rounds is not None:
        raise UserError(f"the server of `algo={names['algo']}` takes single uploads, and edges of "
                        f"`topology={names['topology']}` would take them: leave `topology` out")  # fmt: skip


def combine_uploads(rule: AggregationRule, uploads: PyTree, weights: jax.Array) -> PyTree:
    """Return the combination of the uploads that have arrived, those of positive weights, by a rule.

    Uploads are stacked along a leading axis S, and ``weights`` (S,) sum to one, or are all 0 where nobody sent. The
    combination of no upload is 0. Where an upload that has arrived is not finite, so is no number of the combination:
    the run diverges, as with the mean, and no rule skips the client in silence.
    """
    arrived = weights > 0

    def read(values: jax.Array) -> jax.Array:
        real = values.astype(jnp.result_type(weights.dtype, values.dtype))
        return jnp.where(arrived.reshape(-1, *[1] * (values.ndim - 1)), real, 0)

    present = jax.tree.map(read, uploads)
    finite = jnp.array([jnp.isfinite(values).all() for values in jax.tree.leaves(present)]).all()

    def finish(values: jax.Array) -> jax.Array:
        return jnp.where(arrived.any(), jnp.where(finite, values, jnp.nan), 0)

    return jax.tree.map(finish, rule.combine(present, weights))
