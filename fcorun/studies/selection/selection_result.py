"""Options of ``fcorun select``, its result, and what it leaves: tables, pictures, selection.json, and printed lines."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fcorun.base.config import Count, Fraction
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.base.records.formats import csv_text, frame_csv
from fcorun.base.records.record import OUT_OF_FOLD_FILES, PERSONAL, PREDICTIONS_FILE, SHARED
from fcorun.base.system.files import write_atomically
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.layout import shorten_name, study_formats
from fcorun.reports.pictures.picture import begin_pictures
from fcorun.reports.pictures.selection_picture import NestedView, SelectionView
from fcorun.results.models.coefficients import COLUMNS, Coefficients, coefficients_from
from fcorun.results.models.predictions import ChosenThresholds, Predictions, predictions_csv, tabulate_scores
from fcorun.results.models.score_curves import compute_curves, have_all_curves
from fcorun.studies.selection.choice import CrossValidationChoice, NestedScore, find_metric
from fcorun.studies.selection.fitting import END_STATES, PathFit
from fcorun.studies.selection.folds import list_marked_folds, name_held_out_clients
from fcorun.studies.selection.path import DEFAULT_SHARES
from fcorun.studies.selection.study import StudyResult, delete_files, format_cost

NESTED_FILE = "nested.csv"
_MAX_LINES = 20  # outer folds that are printed
_MAX_LETTERS = 40  # of the clients of an outer fold
_MAX_NAMED_CLIENTS = 20  # in a line
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
    adaptive: Literal["ridge"] | None = None
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
            values["adaptive"] = self.adaptive
        if self.shares:
            values["relax"] = list(self.shares)
        return values

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of the lasso in relaxed coefficients, the lasso first; empty without ``relax``."""
        if isinstance(self.relax, bool) or self.relax is None:
            return DEFAULT_SHARES if self.relax else ()
        return tuple(sorted(self.relax if isinstance(self.relax, list) else [self.relax], reverse=True))


@dataclass(frozen=True, kw_only=True, repr=False)
class Selection(StudyResult):
    """Result of a cross-validation: the fits, the choice, and the refit.

    Attributes:
        options: the options of the command, resolved.
        metric: the metric that chooses.
        fold_weights: the weight of each fold in the mean, (K,).
        choice: the strength or radius that the folds choose.
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
    held_out_clients: dict[str, list[str]] | None = None
    nested: NestedScore | None = None
    predictions: Sequence[Predictions] = ()
    thresholds: ChosenThresholds | None = None

    @property
    def computed_fits(self) -> Mapping[str, PathFit]:
        return self.fits if self.nested is None else {**self.fits, **self.nested.fits}

    @property
    def outer_choices(self) -> dict[str, int]:
        """The position on the path of the value whose fits predict each fold, or outer fold, by the fold's name."""
        if self.nested is not None:
            return dict(zip(self.nested.folds.inner, self.nested.chosen.tolist(), strict=True))
        return {f"fold{k + 1}": self.choice.chosen_index for k in range(len(self.fold_weights))}

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
        if not self.experiment.has_shared_model or not is_linear_model(type(self.experiment.objective)):
            return None
        return coefficients_from(self.fits[ALL_ROWS].solution, self.data, self.experiment, has_path_axis=True)

    @property
    def view(self) -> SelectionView:
        """The data of the picture of the selection."""
        choice = self.choice
        path = self.path
        title = f"{self.experiment.picture_title}: {self.options.folds}-fold cross-validation by {self.by}"
        if self.options.fold_weights == "rows":
            title += f", folds weighed by their {self.fold_measure}"
        nested = None
        if self.nested is not None:
            nested = NestedView(self.nested.mean, self.nested.standard_error, self.nested.chosen)
        metric = find_metric(self.experiment, self.metric)
        return SelectionView(
            title=title,
            param_name=path.param_name,
            values=path.values,
            length=path.length,
            second_name="" if path.second is None else path.second.name,
            second_values=None if path.second is None else path.second.values,
            metric=(metric.label or metric.name).replace("validation", "held-out"),
            n_folds=len(self.fold_weights),
            mean=choice.mean,
            error=choice.difference_standard_error if choice.paired else choice.standard_error,
            paired=choice.paired,
            higher_is_better=choice.higher_is_better,
            best_index=choice.best_index,
            one_se_index=choice.one_se_index,
            chosen_index=choice.chosen_index,
            nested=nested,
            coefficients=self.coefficients,
            cutoff=self.experiment.settings.cutoff,
        )

    def write_files(self) -> Callable[[], None]:
        self.write_tables()
        pictures = [_begin_pictures(self.view, self.experiment)]
        if self.predictions:
            n_folds = f"{self.options.folds} folds"
            if self.nested is not None:
                n_folds = f"{len(self.nested.scores)} outer folds"
            title = f"{self.experiment.picture_title}: out of {n_folds} by {self.by}"
            curves = compute_curves(self.predictions, self._scores)
            if curves is not None:  # of two classes
                if not self._refit_has_curves:
                    pictures.append(_begin_pictures(CurveView(curves, title), self.experiment))
                for name, content in curves.files.items():
                    write_atomically(self.folder / name, content)
        self.write_summary()

        def write_pictures() -> None:
            for finish in pictures:
                for name, content in finish().items():
                    write_atomically(self.folder / name, content)

        return write_pictures

    @property
    def _refit_has_curves(self) -> bool:
        """The flag of a refit that has enough test or validation rows to draw all curves of them."""
        held_out = self.data.validation if self.data.test is None else self.data.test
        return held_out is not None and have_all_curves(held_out.y)

    @cached_property
    def _scores(self) -> list[dict[str, Any]]:
        """The scores of ``predictions``, the rows of scores.csv."""
        return tabulate_scores(self.predictions)

    def write_tables(self) -> None:
        """Write the tables.

        selection.csv has, for each value, a row for each fold and one for the fit of all training rows; curve.csv a row
        for each value; path.csv a row for each intercept, and for each coefficient above the cutoff somewhere on the
        path (that of the chosen second number, such as l1_ratio); predictions.csv a row for each training row,
        predicted out of fold, and scores.csv the scores of these predictions, unless the rows are too many; nested.csv
        a row for each outer fold.
        """
        tables: dict[str, Any] = {
            "selection.csv": csv_text(self._tabulate_fits()),
            "curve.csv": csv_text(self._tabulate_curve()),
        }
        if self.coefficients is not None:
            tables["path.csv"] = frame_csv(self._tabulate_coefficients(self.coefficients))
        if self.nested is not None:
            tables[NESTED_FILE] = csv_text(self._tabulate_nested(self.nested))
        if self.predictions:
            tables[PREDICTIONS_FILE] = predictions_csv(self.predictions)
            tables["scores.csv"] = csv_text(self._scores)
        delete_files(self.folder, OUT_OF_FOLD_FILES)  # those of an earlier choice
        for name, content in tables.items():
            write_atomically(self.folder / name, content)

    def summarize(self) -> dict[str, Any]:
        """Return the keys of selection.json about the folds and the choice."""
        choice, path = self.choice, self.path
        folds = [name for name in self.fits if name != ALL_ROWS]
        content: dict[str, Any] = {
            "metric": self.metric,
            "rule": self.options.rule,
            "chosen": float(path.values[choice.chosen_index]),
        }
        if path.second is not None:
            content["second"] = {
                "key": path.second.key,
                "values": np.unique(path.second.values).tolist(),
                "chosen": float(path.second.values[choice.chosen_index]),
            }
        if path.is_adaptive:
            content["adaptive"] = {"pilot": self.options.adaptive}
        for rule, index in choice.rule_indices.items():
            content[rule] = path.numbers_at(index)
            for name in ("mean", "standard_error", "difference", "difference_standard_error"):
                content[rule][name] = float(getattr(choice, name)[index])
        content["one_standard_error_of"] = "the paired differences" if choice.paired else "the best mean"
        if self.thresholds is not None:
            content["threshold"] = self.thresholds.to_json()
        content["folds"] = self.options.folds
        content["by"] = self.by
        if marked := list_marked_folds(self.data):
            content["fold_values"] = dict(zip(folds, marked, strict=True))
        if self.data.train.group is not None:
            content["group"] = self.experiment.data.group  # type: ignore[attr-defined]
        content["fold_weights"] = self.options.fold_weights
        if self.options.fold_weights == "rows":
            content["fold_measure"] = self.fold_measure
        content["weight_of_fold"] = dict(zip(folds, self.fold_weights.tolist(), strict=True))
        if self.held_out_clients:
            content["held_out"] = self.held_out_clients
        if self.nested is not None:
            content["nested"] = {
                "folds": len(self.nested.scores),
                "mean": self.nested.mean,
                "standard_error": self.nested.standard_error,
                "scores": self.nested.scores.tolist(),
                "chosen": [path.numbers_at(index) for index in self.nested.chosen],
                "weight_of_fold": self.nested.folds.weights.tolist(),
            }
        return content

    def _tabulate_fits(self) -> list[dict[str, Any]]:
        """Return a row for each value and fold. The fit of all rows has no metrics of held-out rows."""
        measured = dict.fromkeys(name for fit in self.fits.values() for name in fit.metrics)
        metrics = list(self.experiment.metrics.sort(measured))
        rows = []
        for name, fit in self.fits.items():
            for p in range(len(self.path.values)):
                row: dict[str, Any] = {**self.path.numbers_at(p), "fold": name.removeprefix("fold")}
                for metric in metrics:
                    row[metric] = float(fit.metrics[metric][p]) if metric in fit.metrics else ""
                for key, counts in fit.counts.items():
                    row[key] = int(counts[p])
                row["end"] = END_STATES[fit.end_state[p]]
                rows.append(row)
        return rows

    def _tabulate_curve(self) -> list[dict[str, Any]]:
        """Return a row for each value of the path: the metric averaged over the folds, nonzeros, and the rules."""
        choice, coefficients = self.choice, self.coefficients
        rows = []
        for p in range(len(self.path.values)):
            row: dict[str, Any] = self.path.numbers_at(p)
            for name in ("mean", "standard_error", "difference", "difference_standard_error"):
                row[f"{self.metric}_{name}"] = float(getattr(choice, name)[p])
            if coefficients is not None:
                is_known = np.isfinite(coefficients.weights[p]).all()
                row["nonzeros"] = self._count_nonzeros(coefficients, p) if is_known else ""
            rules = [rule for rule, index in choice.rule_indices.items() if index == p]
            row["mark"] = " and ".join(choice.rule_labels[rule] for rule in rules)
            row["chosen"] = p == choice.chosen_index
            rows.append(row)
        return rows

    def _count_nonzeros(self, coefficients: Coefficients, index: int) -> int:
        """Return the number of coefficients of features that exceed the cutoff at a position of the path."""
        at_index = coefficients.take(slice(index, index + 1))
        return int(at_index.exceed(self.experiment.settings.cutoff).sum())

    def _tabulate_coefficients(self, coefficients: Coefficients) -> Any:
        """Return a frame with a row for each coefficient of path.csv.

        Columns ``original NAME=VALUE`` are of features in their own units, if features were standardized or scaled.
        """
        import pandas as pd

        of_choice = self.path.slice_of(self.choice.chosen_index)
        coefficients = coefficients.take(of_choice)
        names = [f"{self.path.param_name}={value:.6g}" for value in self.path.values[of_choice]]
        labels = pd.DataFrame(coefficients.labels, columns=list(COLUMNS[:3]))
        frames = [labels, pd.DataFrame(coefficients.values.T, columns=names)]
        original = coefficients.values_original
        if original is not None and (coefficients.scaling is not None or coefficients.scale != 1):
            frames.append(pd.DataFrame(original.T, columns=[f"original {name}" for name in names]))
        exceeds_cutoff = coefficients.values_exceed(self.experiment.settings.cutoff).any(axis=0)
        return pd.concat(frames, axis=1)[exceeds_cutoff | (labels["parameter"] == "bias")]

    def _tabulate_nested(self, nested: NestedScore) -> list[dict[str, Any]]:
        """Return a row for each outer fold: its rows, the choice without them, and the metrics of this choice."""
        held_out = [""] * len(nested.choices)
        if marked := list_marked_folds(self.data):
            held_out = marked
        elif self.options.by == "clients":
            fold_of_client = nested.folds.fold[self.data.train.offsets[:-1]]
            clients = name_held_out_clients(self.data.client_names, fold_of_client)
            held_out = ["; ".join(names) for names in clients.values()]
        sizes = np.bincount(nested.folds.fold)
        measured = dict.fromkeys(name for outer in nested.folds.inner for name in nested.fits[outer].metrics)
        names = [name for name in self.experiment.metrics.sort(measured) if "val_" in name]
        rows = []
        for j, (outer, choice) in enumerate(zip(nested.folds.inner, nested.choices, strict=True)):
            fit, chosen = nested.fits[outer], choice.chosen_index
            row: dict[str, Any] = {"outer_fold": j + 1, "held_out": held_out[j], "n": int(sizes[j])}
            row["weight"] = float(nested.folds.weights[j])
            row |= self.path.numbers_at(chosen)
            row[f"{self.metric}_inner_mean"] = float(choice.mean[chosen])
            row[f"{self.metric}_inner_standard_error"] = float(choice.standard_error[chosen])
            for name in names:
                row[name] = float(fit.metrics[name][chosen]) if name in fit.metrics else ""
            row["end"] = END_STATES[fit.end_state[chosen]]
            rows.append(row)
        return rows

    def describe(self) -> Iterator[str]:
        """Yield the two choices, the one that was taken, warnings, the cost, and the files."""
        choice, path, folder = self.choice, self.path, self.folder
        coefficients = self.coefficients
        for rule, index in choice.rule_indices.items():
            marker = "* " if rule == self.options.rule else "  "
            size = ""
            if coefficients:
                nonzeros = self._count_nonzeros(coefficients, index)
                size = f", {nonzeros} of {coefficients.weights[0].size} coefficients"
            score = f"{choice.mean[index]:.4g}"
            if not choice.paired:
                score += f" ± {choice.standard_error[index]:.2g}"
            elif index != choice.best_index:
                error = choice.difference_standard_error[index]
                score += f", {choice.difference[index]:+.2g} ± {error:.2g} from the {choice.rule_labels['min']}"
            yield f"{marker}{choice.rule_labels[rule]}: {path.describe(index)}  {self.metric} {score}{size}"
        yield self._describe_average()
        if self.nested is not None:
            yield from self._describe_nested(self.nested)
        if self.held_out_clients:
            folds = [
                f"{name} {abbreviate(clients, _MAX_NAMED_CLIENTS)}" for name, clients in self.held_out_clients.items()
            ]
            yield "held out: " + "; ".join(folds)
        if self.thresholds is not None and self.thresholds.chosen_on:
            yield word(f"`threshold={self.thresholds.rule}`: {self.threshold:.4g}, chosen out of fold")
        yield from self.warnings
        yield f"the choice cost {format_cost(self.cost)}"
        numbers = path.describe(choice.chosen_index, digits=6)
        yield f"{folder}/refit: all training rows with {numbers}: {self.end_of_refit}"
        yield from self.refit_warnings
        if not self.study.keeps_held_out and not self.data.train.stays_at_sites:
            yield f"{PREDICTIONS_FILE} is left out: the folds hold out too many rows, at all values of the path"
        files = ("selection.csv", "curve.csv", "path.csv", NESTED_FILE, PREDICTIONS_FILE, "scores.csv")
        existing = [name for name in (*files, "selection.png", "selection.pdf") if (folder / name).exists()]
        yield f"{folder}/ holds {', '.join(existing)}"
        if (folder / "roc.csv").exists():
            line = "of two classes out of fold: roc.csv, calibration.csv and thresholds.csv"
            yield f"{line}, and their pictures" if (folder / "roc.png").exists() else line

    def _describe_nested(self, nested: NestedScore) -> Iterator[str]:
        """Yield the nested score, and a line for each outer fold with the choice without it, and the score on it."""
        n_folds, choice = len(nested.scores), self.choice
        yield (
            f"nested cross-validation: {self.metric} {nested.mean:.4g} ± {nested.standard_error:.2g} over {n_folds} "
            f"outer folds by {self.by}, the score of the whole procedure on rows that its choice has not seen "
            f"({choice.mean[choice.chosen_index]:.4g} at the choice on all rows)"
        )
        numbers = [*self.path.numbers_at(0)]
        yield "  outer fold     rows" + "".join(f"{name:>12}" for name in (*numbers, "inner", "outer"))
        for row in self._tabulate_nested(nested)[:_MAX_LINES]:
            values = [row.get(name, "") for name in (*numbers, f"{self.metric}_inner_mean", self.metric)]
            cells = "".join(f"{math.nan if value == '' else value:12.4g}" for value in values)
            held_out = shorten_name(row["held_out"], _MAX_LETTERS)
            yield f"  {row['outer_fold']:10}{row['n']:9,}{cells}  {held_out}".rstrip()
        if n_folds > _MAX_LINES:
            yield f"  and {n_folds - _MAX_LINES} more, in {NESTED_FILE}"

    @property
    def fold_measure(self) -> str:
        """The size that weighs a fold: its "rows", or "rows' weights" where rows have weights, also at sites."""
        train = self.data.train
        weights = train.all_weights if isinstance(train, SiteRows) else train.weight
        return "rows" if weights is None else "rows' weights"

    def _describe_average(self) -> str:
        """Say how folds are averaged, which standard error the rule takes, and how reliable the score is."""
        rounds = ""
        if not isinstance(self.experiment.algo, Baseline):
            rounds = f" (of the last {self.experiment.settings.tail_rounds} rounds at most)"
        weighting = "weighed equally"
        if self.options.fold_weights == "rows":
            share = self.fold_weights / self.fold_weights.sum()
            weighting = f"weighed by its {self.fold_measure} (from {share.min():.2g} to {share.max():.2g} of the mean)"
        error = "standard error"
        if self.choice.paired:
            error += f" of the folds' paired differences to the {self.choice.rule_labels['min']}"
        may_nest = not (self.nested or self.data.train.stays_at_sites)
        advice = word(" (`outer_folds=5` adds the score of nested cross-validation)") if may_nest else ""
        source = "" if self.coefficients is None else "; coefficients are those of the model of all training rows"
        return (
            f"mean over {self.options.folds} folds{rounds}, each {weighting}, ± {error}, which is rough because folds "
            f"share training rows; the score of the chosen model is slightly optimistic{advice}{source}"
        )


def _begin_pictures(view: SelectionView | CurveView, experiment: PreparedExperiment) -> Callable[[], dict[str, bytes]]:
    """Begin to draw the pictures of a selection, and return the function that returns their contents."""
    return begin_pictures(view, formats=study_formats(experiment.settings), style=experiment.picture_style)
