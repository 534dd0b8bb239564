"""Options and result of ``fcorun select``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fcorun.base.config import Count, Fraction, Positive
from fcorun.base.errors import UserError
from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.results.models.coefficients import Coefficients, coefficients_from
from fcorun.results.models.predictions import ChosenThresholds, Predictions
from fcorun.studies.selection.adaptive import Pilot
from fcorun.studies.selection.choice import CrossValidationChoice
from fcorun.studies.selection.nested import NestedScore
from fcorun.studies.selection.path import DEFAULT_SHARES
from fcorun.studies.selection.path_fit import PathFit
from fcorun.studies.selection.study import StudyResult

ALL_ROWS = "all"  # the name of the fit of all training rows; the other fits are those of the folds
DEFAULT_FOLDS = 5


@dataclass(frozen=True)
class SelectOptions:
    """Options of ``fcorun select``, in addition to a configuration.

    Attributes:
        folds: the number K of folds, at least 2; None: 5, but with by=clients at most the number of clients.
        points: the number of values of the path, at least 2.
        by: "rows" holds out rows of each client, "clients" whole clients.
        rule: "min" chooses the best mean, "one_se" the simplest solution within one standard error of the best mean.
        fold_weights: "rows" weighs a fold in the mean by its rows (by the sum of their weights if ``data.weight`` is
            given), "equal" weighs all folds equally; None: "equal" if rows are divided evenly, "rows" if folds consist
            of clients or groups, or are marked by the data.
        range: the least and the largest strength or radius; None: computed from the data.
        second: the values of a second number that is chosen together with the strength, {"reg.l1_ratio": [0.1, 0.5]};
            None: the strength alone is chosen.
        outer_folds: the number of outer folds of a nested cross-validation, at least 2, whose inner folds are
            ``folds`` of the other rows; None: the selection is not nested.
        adaptive: the pilot of the adaptive lasso, which is fitted to each fold; None: penalties are those of ``reg``.
        adaptive_power: the power of the pilot's coefficients, gamma of Zou (2006).
        relax: the shares of the lasso in the relaxed coefficients, one of which is chosen together with the strength;
            True: 0, 0.25, 0.5, 0.75 and 1; None or False: coefficients are not relaxed.
    """

    folds: Count | None = None
    points: Count = 50
    by: Literal["rows", "clients"] = "rows"
    rule: Literal["min", "one_se"] = "min"
    fold_weights: Literal["rows", "equal"] | None = None
    range: list[float] | None = None
    second: dict[str, list[float]] | None = None
    outer_folds: Count | None = None
    adaptive: Pilot | None = None
    adaptive_power: Positive = 1.0
    relax: bool | Fraction | list[Fraction] | None = None

    def __post_init__(self):
        if len(set(self.shares)) < len(self.shares) or self.relax == []:
            raise UserError(f"`relax={self.relax}`: give different numbers between 0 and 1, or `relax=true`")
        if self.shares and self.second:
            raise UserError(
                f"{' and '.join(self.second)} has several values, and so has relax: one number is chosen together with "
                "the strength: give one value, or leave relax out"
            )
        for name in ("folds", "points", "outer_folds"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise UserError(f"`{name}={value}` must be at least 2")

    def resolve(self, n_clients: int, fold_names: Sequence[str] = (), grouped: bool = False) -> "SelectOptions":
        """Return the options with ``folds`` and ``fold_weights`` filled in for data with ``n_clients`` clients.

        Pass ``fold_names`` if the data mark folds, and ``grouped`` if rows of a group stay together, so that folds
        differ in size.

        Raises:
            UserError: by=clients with one client only, or options that contradict the folds of the data.
        """
        if fold_names:
            return self._resolve_marked(fold_names)
        by_clients = self.by == "clients"
        if by_clients and n_clients < 2:
            raise UserError("`by=clients` holds whole clients out, and there is one only: give `by=rows`")
        default_folds = min(DEFAULT_FOLDS, n_clients) if by_clients else DEFAULT_FOLDS
        default_weights: Literal["rows", "equal"] = "rows" if by_clients or grouped else "equal"
        return replace(self, folds=self.folds or default_folds, fold_weights=self.fold_weights or default_weights)

    @property
    def dependencies(self) -> dict[str, Any]:
        """The options that the fits depend on."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("folds", "points", "by", "range")}
        if self.second:
            values["second"] = {key: sorted(numbers) for key, numbers in self.second.items()}
        if self.adaptive:
            values["adaptive"] = [self.adaptive, self.adaptive_power]
        if self.shares:
            values["relax"] = list(self.shares)
        return values

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the lasso in relaxed coefficients, the lasso first; empty without ``relax``."""
        if isinstance(self.relax, bool) or self.relax is None:
            return DEFAULT_SHARES if self.relax else ()
        return tuple(sorted(self.relax if isinstance(self.relax, list) else [self.relax], reverse=True))

    def _resolve_marked(self, fold_names: Sequence[str]) -> "SelectOptions":
        if self.by == "clients":
            raise UserError("`data.fold` marks the rows of each fold: leave `by=clients` out, or `data.fold`")
        if len(fold_names) < 2:
            raise UserError(
                f"`data.fold` marks one fold only, '{fold_names[0]}': mark two or more, or leave `data.fold` out"
            )
        if self.folds not in (None, len(fold_names)):
            raise UserError(f"`folds={self.folds}`: `data.fold` marks {len(fold_names)} folds: leave folds out")
        if self.outer_folds is not None and len(fold_names) < 3:
            raise UserError(
                f"`outer_folds={self.outer_folds}`: `data.fold` marks two folds, and without one of them a single "
                "fold is left, which has no inner folds: mark three or more"
            )
        if self.outer_folds not in (None, len(fold_names)):
            raise UserError(
                f"`outer_folds={self.outer_folds}`: `data.fold` marks {len(fold_names)} folds, each of which is an "
                f"outer fold: give `outer_folds={len(fold_names)}`"
            )
        return replace(self, folds=len(fold_names), fold_weights=self.fold_weights or "rows")


@dataclass(frozen=True, kw_only=True, repr=False)
class Selection(StudyResult):
    """Result of a cross-validation: the fits, the choice, and the refit.

    Attributes:
        options: the options of the command, resolved.
        metric: the metric that chooses.
        fold_weights: the weight of each fold in the mean, (K,).
        choice: the strength or radius that the folds choose.
        refit_warnings: one sentence for each way in which the refit has not converged.
        held_out_clients: the clients that each fold holds out, by the name of the fold; None unless whole clients are
            held out.
        nested: the score of the whole selection by nested cross-validation; None unless ``outer_folds`` is given.
        predictions: the training rows, each predicted by the chosen fit of the fold that held it out, by shared and by
            personal models; none if the rows are too many. If the selection is nested, the folds are the outer ones.
        thresholds: the thresholds between two classes, chosen on these predictions, or a number; None without
            probabilities.
    """

    options: SelectOptions
    metric: str
    fold_weights: np.ndarray
    choice: CrossValidationChoice
    refit_warnings: Sequence[str] = ()
    held_out_clients: dict[str, list[str]] | None = None
    nested: NestedScore | None = None
    predictions: Sequence[Predictions] = ()
    thresholds: ChosenThresholds | None = None

    @property
    def computed_fits(self) -> Mapping[str, PathFit]:
        return self.fits if self.nested is None else {**self.fits, **self.nested.fits}

    @property
    def by(self) -> str:
        """The origin of the folds: "rows", "clients", or "data.fold", a column that marks them."""
        return self.options.by if self.data.train.fold is None else "data.fold"

    @property
    def threshold(self) -> float:
        """The threshold of the refit: of the personal models if these are selected by, else of the shared model."""
        if self.thresholds is None:
            return DEFAULT_THRESHOLD
        model = PERSONAL if self.metric.startswith(PERSONAL_PREFIX) else SHARED
        return self.thresholds.values.get(model, DEFAULT_THRESHOLD)

    @property
    def coefficients(self) -> Coefficients | None:
        """The coefficients of the global model along the path; None if it is not linear, or no global model exists."""
        fit = self.fits[ALL_ROWS]
        personal_only = self.experiment.algo.has_personal_models and not fit.counts["bytes_up"].any()
        if personal_only or not is_linear_model(type(self.experiment.objective)):
            return None
        return coefficients_from(fit.solution, self.data, self.experiment, has_path_axis=True)
