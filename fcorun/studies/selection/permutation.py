"""Permutations of targets within clients, and the scores that a permutation test compares.

The null hypothesis is that features tell nothing of the target within a client: then the targets of its rows, or of
its groups of one size, may be exchanged, and the observed score is one of 1 + n equally likely ones (Ojala and
Garriga, J. Mach. Learn. Res. 2010, test 1; Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 2010, for the p value).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.base.records.record import OUT_OF_FOLD, SHARED
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import compute_losses
from fcorun.results.models.predictions import describe_output
from fcorun.results.scores.score import Score, scores_of_task
from fcorun.results.scores.weighted_rows import WeightedRows
from fcorun.studies.selection.folds import describe_majority

SUPPORT = "support"  # the number of features with a coefficient
_FEW_KEPT = 0.05  # the share of rows that may keep their targets without a warning
_ROUNDING = 1e-12  # between equal means of scores


@dataclass(frozen=True)
class PermutationOptions:
    """Options of ``fcorun permute``, beside a configuration.

    Attributes:
        n: the number of permutations.
        folds: the number of folds, at least 2; None: 5, but with by=clients at most the number of clients.
        by: "rows" holds out rows of each client, "clients" whole clients.
        points: the number of values of the path on which each permutation chooses, at least 2; None: 10.
        range: the least and the largest strength or radius of the path; None: computed from each permutation.
    """

    n: Count = 1000
    folds: Count | None = None
    by: Literal["rows", "clients"] = "rows"
    points: Count | None = None
    range: list[float] | None = None

    def __post_init__(self):
        for name in ("folds", "points"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise UserError(f"`{name}={value}` must be at least 2")


@dataclass(frozen=True, eq=False)
class Exchanges:
    """The rows that exchange their targets.

    Attributes:
        sets: the rows of each set of k equally long units of a client, (k, length).
        n_rows: the number of all rows, with those that keep their targets.
    """

    sets: Sequence[Int[np.ndarray, "k length"]]
    n_rows: int

    @classmethod
    def of_data(cls, data: FederatedData) -> "Exchanges":
        """Return the exchanges within clients: of rows, or of whole groups of one size.

        A group with rows of several clients keeps its targets. Raises UserError if no targets can change.
        """
        client = data.train.known_client
        group = np.arange(len(client)) if data.train.group is None else data.train.group
        units = np.unique(group, return_inverse=True)[1]
        by_size: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        for rows in np.split(np.argsort(units, kind="stable"), np.cumsum(np.bincount(units))[:-1]):
            if (client[rows] == client[rows[0]]).all():
                by_size[int(client[rows[0]]), len(rows)].append(rows)
        sets = [np.stack(of_size) for of_size in by_size.values() if len(of_size) > 1]
        what = "rows" if data.train.group is None else "groups of equal size of `data.group`"
        if not sets:
            raise UserError(f"no client has two {what}, whose targets could be exchanged: leave `fcorun permute` out, "
                            "or take larger clients")  # fmt: skip
        if not any((data.train.y[rows] != data.train.y[rows[:1]]).any() for rows in sets):
            raise UserError(f"the {what} of each client have the same targets, so that no permutation within clients "
                            "changes them: take clients with several classes or values")  # fmt: skip
        return cls(sets, len(client))

    def exchange(self, values: Shaped[np.ndarray, " N"], number: int, seed: int) -> Shaped[np.ndarray, " N"]:
        """Return targets, or what goes with them, after permutation ``number``, by (seed, number) alone; 0 is none."""
        if number == 0:
            return values
        rng = random_stream(seed, "permute", number)
        permuted = values.copy()
        for rows in self.sets:
            permuted[rows] = values[rows[rng.permutation(len(rows))]]
        return permuted

    @property
    def n_exchanged(self) -> int:
        """The number of rows that exchange their targets."""
        return sum(rows.size for rows in self.sets)

    def describe(self) -> list[str]:
        """Return a sentence on the rows that exchange their targets, if some do not, or whole groups do."""
        n_units = sum(map(len, self.sets))
        if self.n_exchanged == self.n_rows == n_units:
            return []
        groups = "" if n_units == self.n_exchanged else f", as {n_units:,} whole groups"
        kept = "the others have nothing to exchange with, and keep theirs"
        rest = f"; {kept}" if self.n_exchanged < self.n_rows else ""
        return [f"{self.n_exchanged:,} of {self.n_rows:,} rows exchange their targets{groups}{rest}"]

    def warn_kept(self) -> list[str]:
        """Return a warning if more than ``_FEW_KEPT`` of the rows keep their targets in all permutations."""
        n_kept = self.n_rows - self.n_exchanged
        if n_kept <= _FEW_KEPT * self.n_rows:
            return []
        share = f"{100 * n_kept / self.n_rows:.0f} %"
        return [f"{share} of the rows keep their targets: permuted scores may be above those of chance, and the test "
                "may miss a signal"]  # fmt: skip

    def warn_few(self, y: Shaped[np.ndarray, " N"], n: int) -> list[str]:
        """Return a warning if the targets have fewer different arrangements than ``n`` permutations."""
        log_count = 0.0
        for rows in self.sets:
            repeats = np.unique(y[rows], axis=0, return_counts=True)[1]
            log_count += lgamma(len(rows) + 1) - sum(lgamma(count + 1) for count in repeats.tolist())
        if log_count >= log(n):
            return []
        count = round(exp(log_count))
        return [f"the targets have {count:,} different arrangements only, so that p is hardly ever below "
                f"{1 / count:.2g}, however many permutations are drawn"]  # fmt: skip


@dataclass(frozen=True, eq=False)
class FoldScores:
    """The scores of a permutation test: each the mean over the folds of the score of a fold.

    Attributes:
        objective, data: the model, and the rows with their observed targets.
        has_support: whether features have a coefficient each.
    """

    objective: Objective
    data: FederatedData
    has_support: bool

    @property
    def scores(self) -> list[Score]:
        """The scores of the task, in the order of scores.csv."""
        return [score for score in scores_of_task(self.data.target_task) if score.is_permuted]

    @property
    def names(self) -> list[str]:
        """The names of the statistics."""
        return [*(score.name for score in self.scores), *([SUPPORT] if self.has_support else [])]

    @property
    def labels(self) -> list[str]:
        """The names of the statistics in a sentence."""
        return [*(score.label for score in self.scores), *(["features with a coefficient"] if self.has_support else [])]

    def describe_test(self, table: Float[np.ndarray, "1+n S"]) -> list[str]:
        """Return a sentence for each statistic, those of ``table``.

        Where most rows are of one class, scores that a threshold decides, as accuracy, come after the other scores.
        """
        sentences = list(describe_test(self.labels, table))
        if not describe_majority(self.data):
            return sentences
        misleads = [score.needs_threshold for score in self.scores]
        order = sorted(range(len(misleads)), key=misleads.__getitem__)
        return [*(sentences[i] for i in order), *sentences[len(order) :]]

    def choose(self, y: Shaped[np.ndarray, " N"], outputs: Float[np.ndarray, "P N *classes"]) -> int | None:
        """Return the position on the path with the least mean loss of the rows out of fold; None if none is finite."""
        if len(outputs) == 1:
            return 0
        offset = 0.0 if self.data.train.offset is None else self.data.train.offset
        client = self.data.train.known_client
        losses = [compute_losses(self.objective, output + offset, y, client)["loss"].mean() for output in outputs]
        return None if np.isnan(losses).all() else int(np.nanargmin(losses))

    def compute(
        self,
        y: Shaped[np.ndarray, " N"],
        fold: Int[np.ndarray, " N"],
        output: Float[np.ndarray, " N *classes"],
        support: float,
    ) -> Float[np.ndarray, " S"]:
        """Return the statistics of outputs out of fold, nan where none is defined.

        ``fold`` is the fold of each row, from 0. A fold that does not define a score, as one with a single class has no
        AUC, does not count in its mean.
        """
        if not np.isfinite(output).all():  # a fold diverged
            return np.full(len(self.names), np.nan)
        rows = replace(self.data.train, y=y)
        clients = self.data.client_of_row("train")
        options = {"clients": clients, "split": OUT_OF_FOLD, "model": SHARED}
        predictions = describe_output(self.objective, self.data, rows, output, **options)
        scored = WeightedRows.each_once(predictions.to_scored_rows().in_groups(fold))
        values = []
        for score in self.scores:
            of_folds = score.of_rows(scored)[0]
            is_defined = ~np.isnan(of_folds)
            values.append(float(of_folds[is_defined].mean()) if is_defined.any() else np.nan)
        if self.has_support:
            values.append(support)
        return np.array(values)


def compute_p_values(table: Float[np.ndarray, "1+n S"]) -> Float[np.ndarray, " S"]:
    """Return (1 + the number of permutations at least as large) / (1 + n), where row 0 is observed.

    A permutation without a value counts as at least as large, so that p is never too small for it. Without an observed
    value, p is nan.
    """
    is_smaller = table[1:] < table[0] - _ROUNDING * np.abs(table[0])
    return np.where(np.isnan(table[0]), np.nan, (1 + (~is_smaller).sum(axis=0)) / len(table))


def describe_test(labels: Sequence[str], table: Float[np.ndarray, "1+n S"]) -> Iterator[str]:
    """Yield a sentence for each statistic: the observed value, the permutations', and p."""
    for label, values, p in zip(labels, table.T, compute_p_values(table), strict=True):
        if np.isnan(values[0]):
            yield f"{label} is not defined: a fit diverged, or no fold has rows of two classes or values"
            continue
        if np.isnan(values[1:]).all():
            yield f"{label} {values[0]:.4g}; not defined of any permutation"
            continue
        low, median, high = np.nanquantile(values[1:], (0.025, 0.5, 0.975))
        yield (f"{label} {values[0]:.4g}; permuted {median:.4g} (95 % within {low:.4g} to {high:.4g}); "
               f"p = {p:.3g} (as much or more by chance)")  # fmt: skip
