"""The comparison of models for clients: each is chosen on inner folds, and judged on outer folds.

All models share the outer folds, but for ``new_client``, whose folds are the clients.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, word
from fcorun.base.metrics import RANKING_METRICS
from fcorun.base.records.record import PERSONAL
from fcorun.base.records.record import SHARED as SHARED_MODEL
from fcorun.data.tasks import find_task
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.compared import PERSONAL_ALGORITHMS, SHARED_MODEL_ALGORITHM
from fcorun.results.score_intervals.held_out_rows import HeldOutRows, match_rows, read_held_out_rows
from fcorun.results.score_intervals.intervals import Tabulation
from fcorun.results.score_intervals.score_table import BOOTSTRAP, IntervalRow
from fcorun.results.scores.score import all_scores
from fcorun.studies.selection.comparison import (
    LOCAL,
    MEAN,
    NEW_CLIENT,
    SHARED,
    STANDARDIZED,
    CompareOptions,
    ComparisonRow,
    ModelComparison,
    describe_candidate,
    order_scores,
)
from fcorun.studies.selection.folds import list_marked_folds
from fcorun.studies.selection.select import SelectionPlan, plan_selection
from fcorun.studies.selection.selection_result import Selection, SelectOptions
from fcorun.studies.selection.study import Log

Compose = Callable[[list[str]], dict[str, Any]]  # from overrides to a configuration
DEFAULT_OUTER_FOLDS = 5
# the beginnings of warnings about scores at a threshold, which a comparison does not list
_OF_SCORES_NOT_SHOWN = ("no interval of", "some scores have no interval")


def compose_candidates(compose: Compose, overrides: Sequence[str], options: CompareOptions) -> dict[str, dict]:
    """Return the configuration of each candidate by its name. Raises UserError."""
    of_shared = [text for text in overrides if _key(text) == "algo" or _key(text).startswith("algo.")]
    common = [text for text in overrides if text not in of_shared]
    shared = [*common, *(of_shared or [f"algo={SHARED_MODEL_ALGORITHM}"])]
    configs = {SHARED: compose(shared)}
    data = configs[SHARED]["data"]
    if "standardize" in data and data["standardize"] != "per_client":
        own_scale = [text for text in shared if _key(text) != "data.standardize"]
        configs[STANDARDIZED] = compose([*own_scale, "data.standardize=per_client"])
    for name in options.method_names:
        configs[name] = compose([*common, f"algo={name}", *PERSONAL_ALGORITHMS.get(name, ())])
    of_channels = [text for text in common if _key(text).partition(".")[0] in ("uplink", "downlink")]
    of_local = [text for text in common if text not in of_channels]  # local training sends nothing
    configs[LOCAL] = compose([*of_local, f"algo={LOCAL}", *PERSONAL_ALGORITHMS.get(LOCAL, ())])
    return configs | {NEW_CLIENT: configs[SHARED]}


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def plan_candidates(
    configs: Mapping[str, Mapping[str, Any]], options: CompareOptions
) -> tuple[dict[str, SelectionPlan], list[str]]:
    """Return the selection of each candidate, and a sentence for each one that these data do not allow.

    The own models of a candidate are judged if it has some. They are chosen by their loss where the folds do not
    measure the metric of the configuration for them. An algorithm that ignores psi has nothing to choose: its folds are
    the outer ones. Raises UserError if there is no selection of the shared model.
    """
    experiment = prepare({**configs[SHARED], "metric": None})
    if n_tables := experiment.settings.imputations:
        raise UserError(f"`imputations={n_tables}` averages shared models, and compare also trains own ones of "
                        "clients, by gaps filled once: leave imputations out")  # fmt: skip
    data = load_data(experiment)
    if data.target_task.is_quantity and not hasattr(experiment.objective, "response"):
        raise UserError(f"the predictions of `objective={experiment.names['objective']}` are no expected values, whose "
                        "squared errors compare models: give another objective")  # fmt: skip
    for name in options.method_names:
        if not prepare({**configs[name], "metric": None}).algo.has_personal_models:
            raise UserError(f"methods={name}: `algo={name}` trains no own models for clients: leave it out")
    n_marked, n_clients = len(list_marked_folds(data)), len(data.client_names)
    n_outer = options.outer_folds or n_marked or DEFAULT_OUTER_FOLDS
    n_inner = n_outer if n_marked else options.folds
    by_rows = SelectOptions(
        folds=n_inner, outer_folds=n_outer, points=options.points, rule=options.rule, range=options.range
    )
    plans, left_out = {}, []
    for name, config in configs.items():
        choice = by_rows
        if name == NEW_CLIENT:
            if n_marked:
                left_out.append(
                    word(f"{name} is left out: `data.fold` marks folds of rows, so that no client is held out")
                )
                continue
            if n_clients < 3:
                left_out.append(f"{name} is left out: it needs three clients or more")
                continue
            choice = replace(by_rows, by="clients", folds=min(n_inner, n_clients), outer_folds=n_clients)
        try:
            candidate, metric = prepare({**config, "metric": None}), config.get("metric")
            if candidate.algo.has_personal_models and metric:
                metric = f"personal_val_{metric.removeprefix('personal_').removeprefix('val_')}"
                if metric not in candidate.metrics:  # the folds measure no ranking of own models
                    metric = "personal_val_loss"
            varies = candidate.applies_regularizer
            if not varies:
                choice = SelectOptions(folds=choice.outer_folds, by=choice.by)
            plans[name] = plan_selection(config, choice, metric=metric, varies_strength=varies)
        except UserError as error:
            if name == SHARED:
                raise
            left_out.append(f"{name} is left out: {error}")
    return plans, left_out


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison that is ready to run, as a ``StudyPlan``: a selection for each candidate, without a refit.

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
        """Compute the missing fits of each candidate, compare the predictions of the outer folds, and write files.

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
                began = time.perf_counter()
                with plan.study.claim():
                    selections[name] = plan.select_value(lambda line, name=name: log(f"{name}: {line}"))
                    selections[name].write_tables()
                    selections[name].write_summary(time.perf_counter() - began)
                rows[name] = _read_rows(plan)
            except UserError as error:
                if name == SHARED:
                    raise
                warnings.append(f"{name} is left out: {error}")
        shared = self.plans[SHARED]
        if shared.metric in RANKING_METRICS:
            warnings.append(word(f"mean is left out: it ranks no rows of a client, as `metric={shared.metric}` does"))
            warnings += [
                f"{name}: its strength is chosen by {selection.metric}, since the folds do not measure "
                f"{shared.metric} of own models"
                for name, selection in selections.items()
                if selection.metric != shared.metric and selection.experiment.applies_regularizer
            ]
        elif getattr(shared.experiment.data, "offset", None) or find_task(rows[SHARED].task).has_events:
            warnings.append(
                word("mean is left out: it is for targets without `data.offset`, and for no times to events")
            )
        else:
            rows[MEAN] = predict_means(rows[SHARED])
        warnings += _merge_warnings(selections)
        table, findings = compare_rows(rows, self.options, shared.experiment.settings.seed)
        chosen = {}
        for name, selection in selections.items():
            if selection.nested is not None:
                chosen[name] = [selection.path.numbers_at(index) for index in selection.nested.chosen]
        data = shared.study.data
        comparison = ModelComparison(
            rows=table,
            candidates=list(rows),
            clients=list(data.client_names),
            scores=order_scores(table, shared.metric),
            task=data.task,
            options=self.options,
            folder=self.folder,
            chosen=chosen,
            warnings=[*warnings, *findings],
            experiment=shared.experiment,
            seconds=time.perf_counter() - began,
        )
        comparison.write_files()
        return comparison


def plan_comparison(
    compose: Compose, overrides: Sequence[str], options: CompareOptions, out: str | Path | None = None
) -> ComparisonPlan:
    """Check a comparison, and prepare the selections of its candidates, without writing anything. Raises UserError.

    ``compose`` makes each candidate's configuration from the ``overrides``.
    """
    plans, left_out = plan_candidates(compose_candidates(compose, overrides, options), options)
    study = plans[SHARED].study
    folder = Path(out or Path("outputs") / study.experiment.names["data"] / f"compare-{study.identity[:8]}")
    for name, plan in plans.items():
        plans[name] = replace(plan, study=replace(plan.study, folder=folder / name))
    return ComparisonPlan(plans, left_out, options, folder)


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
    tabulation = Tabulation("rows" if shared.group is None else "groups", options.score_options, seed)
    table = []
    for name, candidate in rows.items():
        other_folds = name == NEW_CLIENT
        candidate, reference, _ = match_rows(replace(candidate, fold=None) if other_folds else candidate, shared)
        differences = {}
        if name != SHARED:
            differences = {
                (row.client, row.score): row for row in _bootstrapped(tabulation.tabulate([candidate, reference]))
            }
        for row in _bootstrapped(tabulation.tabulate([candidate])):
            if name == MEAN and all_scores()[row.score].ranks_rows:  # which differ by fold alone
                continue
            numbers = {}
            if difference := differences.get((row.client, row.score)):
                numbers = {"difference": difference.estimate}
                numbers |= {"difference_low": difference.low, "difference_high": difference.high}
            table.append(
                ComparisonRow(
                    candidate=name,
                    client=row.client,
                    n=row.n,
                    events=row.events,
                    score=row.score,
                    value=row.estimate,
                    low=row.low,
                    high=row.high,
                    **numbers,
                )
            )
    return table, [text for text in tabulation.sentences() if not text.startswith(_OF_SCORES_NOT_SHOWN)]


def _bootstrapped(rows: Sequence[IntervalRow]) -> list[IntervalRow]:
    return [row for row in rows if row.method == BOOTSTRAP]


def _merge_warnings(selections: Mapping[str, Selection]) -> list[str]:
    """Return the warnings of all candidates, each once, after the names of the candidates that it is about."""
    candidates: dict[str, list[str]] = {}
    for name, selection in selections.items():
        for sentence in selection.warnings:
            candidates.setdefault(sentence, []).append(name)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in candidates.items()]


def predict_means(rows: HeldOutRows) -> HeldOutRows:
    """Predict each row by the mean of the targets of its client in the other folds.

    To the rows of the client, a mean adds one whose target is the mean over the rows of all clients in the other folds:
    a share of 0 would have an infinite log loss, and a client without rows in the other folds has the mean over all of
    them. All rows count alike, whatever their weights.
    """
    assert rows.fold is not None
    targets = rows.target.astype(float)[:, None]
    if rows.classes:
        targets = np.eye(len(rows.classes))[rows.target]
    means = np.empty_like(targets)
    for fold in np.unique(rows.fold):
        is_training = rows.fold != fold
        of_all = targets[is_training].mean(axis=0)
        for client in np.unique(rows.client):
            is_own = rows.client == client
            client_targets = targets[is_training & is_own]
            means[is_own & ~is_training] = (client_targets.sum(axis=0) + of_all) / (len(client_targets) + 1)
    if not rows.classes:
        return replace(rows, model=MEAN, prediction=means[:, 0])
    probability = means
    if rows.probability is None:  # the other models have no scores of probabilities
        probability = None
    elif find_task(rows.task).has_two_classes:
        probability = means[:, 1]
    return replace(rows, model=MEAN, prediction=means.argmax(axis=1), probability=probability)
