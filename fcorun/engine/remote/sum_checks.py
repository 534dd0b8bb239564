"""The checks of what sites send to a round and an evaluation: no site changes the record by what its rows cannot be."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.data.rows.site_rows import SiteRows
from fcorun.engine.federation import Federation
from fcorun.engine.remote.personal_models import list_sums
from fcorun.methods.objectives.objective import score_names, score_range

_ROUNDING = 1e-3  # of sums, relative to the share of a site's rows
_CLIENTS = "clients"  # the clients of an answer, each with the same weight
_MOST_WORK = 2**40  # gradients or proxes of a site in a round


def check_work(work: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ValueError for what are no counts of gradients and proxes."""
    if work.shape != shape or work.dtype != np.int64:
        raise ValueError(f"work of the shape {work.shape}")
    if not ((work >= 0) & (work <= _MOST_WORK)).all():
        raise ValueError("impossible counts of gradients")


@dataclass(frozen=True)
class SumChecks:
    """The checks of the sums of an evaluation.

    Attributes:
        n_runs: the number of runs, G.
    """

    federation: Federation
    n_runs: int

    def check(self, site: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise UserError, which names the site, unless the arrays can be the sums over the rows of the site.

        These are one number for each run, the loss and the scores of each split of which the site has rows. Numbers
        that are not finite pass: the run diverges.
        """
        shares = {split: by_answer.get(site, 0.0) for split, by_answer in self._shares.items()}
        needed = {name for name, (split, _) in self._sums.items() if shares[split] > 0}
        if not needed <= set(arrays) <= set(self._sums):
            raise UserError(f"site '{site}' sent {self._describe(arrays)} instead of the sums of its rows: use the "
                            "same version of fcorun at the server and at all sites")  # fmt: skip
        for key, values in arrays.items():
            if values.shape != (self.n_runs,) or values.dtype != self.federation.precision:
                raise UserError(f"site '{site}' sent sums of the shape {values.shape} and the type {values.dtype} "
                                f"instead of ({self.n_runs},) and {np.dtype(self.federation.precision)}: use the same "
                                "version of fcorun at the server and at all sites")  # fmt: skip
            split, name = self._sums[key]
            if not self._fits(values[np.isfinite(values)], name, shares[split]):
                raise UserError(f"site '{site}' sent {key}={values.tolist()}, which no rows have: see the log of that "
                                "site")  # fmt: skip

    @staticmethod
    def _describe(arrays: Mapping[str, np.ndarray]) -> str:
        return ", ".join(sorted(arrays))[:100] or "nothing"

    def _fits(self, values: np.ndarray, name: str, share: float) -> bool:
        least, most = self._range(name)
        if share == 0:
            least = most = 0.0
        error = self._rows.sum_errors.get("evaluate", 0.0) + _ROUNDING * share
        low, high = (bound * share if np.isfinite(bound) else bound for bound in (least, most))
        return bool(((values >= low - error) & (values <= high + error)).all())

    def _range(self, name: str) -> tuple[float, float]:
        """Return the least and the largest mean of a loss or score, or of a metric of personal models."""
        if name in self._names:
            return score_range(self.federation.problem.objective, name)
        return (0.0, 1.0) if CATALOGUE[name].bounded else (-np.inf, np.inf)

    @property
    def _rows(self) -> SiteRows:
        rows = self.federation.data.train
        assert isinstance(rows, SiteRows)
        return rows

    def sum_shares(self, answered: tuple[str, ...]) -> dict[str, float]:
        """Return the share of the rows of these answers in the means over the rows of a split; 1 for all answers.

        Sites with personal models are all waited for.
        """
        shares = {}
        for split, by_answer in self._shares.items():
            is_complete = set(by_answer) <= set(answered)
            shares[split] = 1.0 if is_complete else sum(by_answer.get(name, 0.0) for name in answered)
        return shares

    @cached_property
    def _sums(self) -> dict[str, tuple[str, str]]:
        """The split, or ``_CLIENTS``, and the metric of each sum by name."""
        sums = {f"{split}_{name}": (split, name) for split in ("train", "val") for name in self._names
                if split in self._shares}  # fmt: skip
        return sums | {key: (split or _CLIENTS, name) for key, split, name in list_sums(self.federation)}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        n_classes = len(self.federation.data.classes)
        return score_names(self.federation.problem.objective, n_classes if n_classes > 2 else 1)

    @cached_property
    def _shares(self) -> dict[str, dict[str, float]]:
        """The share of the rows of each answer in the means over the rows of a split, by split, and of clients."""
        rows, validation = self._rows, self.federation.data.validation
        by_examples = self.federation.evaluation.client_weighting == "examples"
        weights = {"train": rows.sum_by_answer(rows.client_weights if by_examples else np.ones(len(rows.sizes)))}
        if isinstance(validation, SiteRows):
            weights["val"] = validation.sum_by_answer(validation.client_weights)
        weights[_CLIENTS] = rows.sum_by_answer(np.ones(len(rows.sizes)))
        shares = {}
        for split, of_answers in weights.items():
            total = sum(of_answers.values())
            shares[split] = {name: weight / total for name, weight in of_answers.items()}
        return shares
