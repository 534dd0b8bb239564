"""What a selection is asked for, and what it is when it is done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fcorun.config import Count
from fcorun.errors import UserError
from fcorun.models.coefficients import Coefficients, coefficients_from
from fcorun.objectives.base import is_linear_model
from fcorun.records.record import Record
from fcorun.selection.choice import CrossValidationChoice
from fcorun.selection.fitting import PathFit
from fcorun.selection.study import StudyResult

ALL_ROWS = "all"  # the fit of all training rows, among those of the folds
DEFAULT_FOLDS = 5


@dataclass(frozen=True)
class SelectOptions:
    """What ``fcorun select`` is asked for, beside a configuration.

    Attributes:
        folds: K, at least 2; None: 5, or by clients as many as there are, if these are fewer.
        points: strengths of the path, at least 2.
        by: whether rows within each client are held out, or whole clients.
        rule: the strength of the best mean, or of the simplest solution within one standard error of it.
        fold_weights: whether a fold counts in the mean by its rows (the sum of their weights where ``data.weight`` is
            given) or all folds alike ("equal"); None: alike where rows are dealt out evenly, by rows where folds are
            of clients, of groups of rows, or marked by the data.
        range: the least and the largest strength or radius; None: worked out from the data.
    """

    folds: Count | None = None
    points: Count = 50
    by: Literal["rows", "clients"] = "rows"
    rule: Literal["min", "one_se"] = "min"
    fold_weights: Literal["rows", "equal"] | None = None
    range: list[float] | None = None

    def __post_init__(self):
        for name in ("folds", "points"):
            if (value := getattr(self, name)) is not None and value < 2:
                raise UserError(f"{name}={value} must be at least 2")

    def resolve(self, n_clients: int, fold_names: Sequence[str] = (), grouped: bool = False) -> "SelectOptions":
        """Return the same with a number of folds, and with how they are weighed, for so many clients.

        ``marked`` are the names of the folds where the data have them; ``grouped`` says whether rows stay together in
        groups, so that folds differ in size. Raises UserError where by=clients has one client only, and where folds
        that the data have are asked for otherwise.
        """
        if fold_names:
            return self._as_marked(fold_names)
        if self.by == "clients" and n_clients < 2:
            raise UserError("by=clients holds whole clients out, and there is one only: give by=rows")
        whole = self.by == "clients"
        folds = self.folds or (min(DEFAULT_FOLDS, n_clients) if whole else DEFAULT_FOLDS)
        return replace(self, folds=folds, fold_weights=self.fold_weights or ("rows" if whole or grouped else "equal"))

    def _as_marked(self, marked: Sequence[str]) -> "SelectOptions":
        if self.by == "clients":
            raise UserError("data.fold marks the rows of each fold: leave by=clients out, or data.fold")
        if len(marked) < 2:
            raise UserError(f"data.fold marks one fold only, '{marked[0]}': mark two or more, or leave data.fold out")
        if self.folds not in (None, len(marked)):
            raise UserError(f"folds={self.folds}: data.fold marks {len(marked)} folds: leave folds out")
        return replace(self, folds=len(marked), fold_weights=self.fold_weights or "rows")


@dataclass(frozen=True, kw_only=True)
class Selection(StudyResult):
    """A selection that is done.

    Attributes:
        metric: by which was chosen.
        weights: what each fold counts in the mean, (K,).
        held: the clients that each fold holds out, by its name; None by rows.
        fitted: the fits of all rows and of each fold, by name.
        record: the refit on all rows.
        refit: what its end says of the choice, a sentence each.
    """

    options: SelectOptions
    metric: str
    weights: np.ndarray
    fits: dict[str, PathFit]
    choice: CrossValidationChoice
    record: Record | None = None
    refit: Sequence[str] = ()
    held_out_clients: dict[str, list[str]] | None = None

    @property
    def by(self) -> str:
        """What is held out: "rows", "clients", or what the column "data.fold" marks."""
        return self.options.by if self.data.fold is None else "data.fold"

    @property
    def coefficients(self) -> Coefficients | None:
        """Those along the path of the model of all clients; None where it is not linear, or clients have only models
        of their own."""
        whole = self.fits[ALL_ROWS]
        alone = self.experiment.algo.has_personal_models and not whole.counts["bytes_up"].any()
        if alone or not is_linear_model(type(self.experiment.objective)):
            return None
        return coefficients_from(whole.solution, self.data, self.experiment.data.units, has_path_axis=True)
