"""The comparison of models for clients: each is chosen on inner folds, and judged on outer folds.

All models share the outer folds, but for ``new_client``, whose folds are the clients.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.metrics import RANKING_METRICS
from fcorun.base.records.record import PERSONAL
from fcorun.base.records.record import SHARED as SHARED_MODEL
from fcorun.results.models.score_intervals.intervals import tabulate_intervals
from fcorun.results.models.score_intervals.pairing import match_rows
from fcorun.results.models.score_intervals.score_table import BOOTSTRAP, IntervalRow
from fcorun.results.models.score_intervals.scored_rows import HeldOutRows, read_held_out_rows
from fcorun.results.models.score_intervals.warnings import Findings
from fcorun.studies.selection.comparison.candidates import Compose, compose_candidates, plan_candidates
from fcorun.studies.selection.comparison.comparison_options import (
    MEAN,
    NEW_CLIENT,
    SHARED,
    CompareOptions,
    describe_candidate,
)
from fcorun.studies.selection.comparison.comparison_result import RANKINGS, ComparisonRow, ModelComparison, order_scores
from fcorun.studies.selection.comparison.mean import predict_means
from fcorun.studies.selection.cross_validation import selection_files as files
from fcorun.studies.selection.cross_validation.select_strength import SelectionPlan
from fcorun.studies.selection.cross_validation.selection_options import Selection
from fcorun.studies.selection.path import applies_regularizer
from fcorun.studies.selection.study import Log

# the beginnings of warnings about scores at a threshold, which a comparison does not list
_OF_SCORES_NOT_SHOWN = ("no interval of", "some scores have no interval")


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison that is ready to run.

    Attributes:
        plans: the selection of each candidate, by the candidate's name.
        left_out: a sentence for each candidate that the data do not allow.
        folder: the folder of the comparison; each candidate has a folder in it.
    """

    plans: Mapping[str, SelectionPlan]
    left_out: Sequence[str]
    options: CompareOptions
    folder: Path

    @property
    def messages(self) -> list[str]:
        """The lines to print before the comparison begins."""
        lines = [f"{name}: {describe_candidate(name)}" for name in (*self.plans, MEAN)]
        return [*self.plans[SHARED].messages, "candidates:", *(f"  {line}" for line in lines), *self.left_out]

    def describe_progress(self) -> list[str]:
        """Say how many fits of each candidate exist."""
        return [f"{name}: {plan.study.describe_progress()}" for name, plan in self.plans.items()]

    def run(self, log: Log = lambda line: None) -> ModelComparison:
        """Compute the missing fits of each candidate, and compare their predictions of the outer folds.

        Raises:
            UserError: a folder cannot be used, or the shared model has no predictions.
        """
        began = time.perf_counter()
        rows: dict[str, HeldOutRows] = {}
        warnings = list(self.left_out)
        selections: dict[str, Selection] = {}
        for i, (name, plan) in enumerate(self.plans.items(), 1):
            log(f"{name}, candidate {i} of {len(self.plans)}: {len(plan.study.subsets)} fits")
            try:
                selections[name] = _run_candidate(plan, lambda line, name=name: log(f"{name}: {line}"))
                rows[name] = _read_rows(plan)
            except UserError as error:
                if name == SHARED:
                    raise
                warnings.append(f"{name} is left out: {error}")
        shared = self.plans[SHARED]
        if shared.metric in RANKING_METRICS.values():
            warnings.append(f"mean is left out: it ranks no rows of a client, as metric={shared.metric} does")
            warnings += [
                f"{name}: its strength is chosen by {selection.metric}, since the folds do not measure "
                f"{shared.metric} of own models"
                for name, selection in selections.items()
                if selection.metric != shared.metric and applies_regularizer(selection.experiment.algo)
            ]
        elif getattr(shared.experiment.data, "offset", None) or rows[SHARED].task == "survival":
            warnings.append("mean is left out: it is for targets without data.offset, and for no times to events")
        else:
            rows[MEAN] = predict_means(rows[SHARED])
        warnings += _merge_warnings(selections)
        table, findings = compare_rows(rows, self.options, shared.experiment.settings.seed)
        data = shared.study.data
        return ModelComparison(
            rows=table,
            candidates=list(rows),
            clients=list(data.client_names),
            scores=order_scores(table, shared.metric),
            task=data.task,
            options=self.options,
            folder=self.folder,
            chosen=_list_choices(selections),
            warnings=[*warnings, *findings],
            experiment=shared.experiment,
            seconds=time.perf_counter() - began,
        )


def plan_comparison(
    compose: Compose, overrides: Sequence[str], options: CompareOptions, out: str | Path | None = None
) -> ComparisonPlan:
    """Check a comparison, and prepare the selections of its candidates, without writing anything. Raises UserError.

    ``compose`` makes each candidate's configuration from the ``overrides``.
    """
    configs = compose_candidates(compose, overrides, options)
    folder = Path(out or "compare")
    plans, left_out = plan_candidates(configs, options, lambda name: str(folder / name))
    if out is None:
        study = plans[SHARED].study
        folder = Path("outputs") / study.experiment.names["data"] / f"compare-{study.identity[:8]}"
        moved = {name: replace(plan.study, folder=folder / name) for name, plan in plans.items()}
        plans = {name: replace(plan, study=moved[name]) for name, plan in plans.items()}
    return ComparisonPlan(plans, left_out, options, folder)


def _run_candidate(plan: SelectionPlan, log: Log) -> Selection:
    """Compute the missing fits of a candidate, and write the tables of its selection, without a refit."""
    began = time.perf_counter()
    with plan.study.claim():
        selection = plan.select_value(log)
        files.write_tables(selection)
        files.write_summary(selection, seconds=time.perf_counter() - began)
    return selection


def _read_rows(plan: SelectionPlan) -> HeldOutRows:
    """Return the predictions of the outer folds: of own models where the algorithm has them. Raises UserError."""
    if not plan.study.keeps_held_out:
        raise UserError("the rows are too many to be compared, at all values of the path: give fewer points")
    model = PERSONAL if plan.study.experiment.algo.has_personal_models else SHARED_MODEL
    for rows in read_held_out_rows(plan.study.folder, plan.study.data.task):
        if rows.model == model:
            return rows
    raise UserError("some client has no model of its own in a fold")


def compare_rows(
    rows: Mapping[str, HeldOutRows], options: CompareOptions, seed: int
) -> tuple[list[ComparisonRow], list[str]]:
    """Return the scores of all candidates on the same rows, with differences to the shared model, and warnings."""
    shared = rows[SHARED]
    findings = Findings("rows" if shared.group is None else "groups")
    tabulate = partial(
        tabulate_intervals,
        options=options.score_options,
        seed=seed,
        findings=findings,
    )
    table = []
    for name, candidate in rows.items():
        other_folds = name == NEW_CLIENT
        candidate, reference, _ = match_rows(replace(candidate, fold=None) if other_folds else candidate, shared)
        differences = {}
        if name != SHARED:
            differences = {(row.client, row.score): row for row in _bootstrapped(tabulate([candidate, reference]))}
        for row in _bootstrapped(tabulate([candidate])):
            if name == MEAN and row.score in RANKINGS:  # which differ by fold alone
                continue
            table.append(ComparisonRow.of(name, row, differences.get((row.client, row.score))))
    return table, [text for text in findings.sentences() if not text.startswith(_OF_SCORES_NOT_SHOWN)]


def _bootstrapped(rows: Sequence[IntervalRow]) -> list[IntervalRow]:
    return [row for row in rows if row.method == BOOTSTRAP]


def _merge_warnings(selections: Mapping[str, Selection]) -> list[str]:
    """Return the warnings of all candidates, each once, after the names of the candidates that it is about."""
    candidates: dict[str, list[str]] = {}
    for name, selection in selections.items():
        for sentence in selection.warnings:
            candidates.setdefault(sentence, []).append(name)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in candidates.items()]


def _list_choices(selections: Mapping[str, Selection]) -> dict[str, list[dict[str, float]]]:
    """Return the numbers that each candidate chose without each outer fold."""
    return {
        name: [selection.path.numbers_at(index) for index in selection.nested.chosen]
        for name, selection in selections.items()
        if selection.nested is not None
    }
