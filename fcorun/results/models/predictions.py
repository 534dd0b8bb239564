"""Predictions of rows whose target is known, the threshold and scores that they give; rows and events of the data."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.errors import word
from fcorun.base.records.formats import columns_csv
from fcorun.base.records.record import PERSONAL, PREDICTIONS_FILE, SHARED, TRAIN
from fcorun.base.records.tables import MAX_PREDICTED_ROWS
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import (
    Arrays,
    class_probabilities,
    compute_losses,
    compute_predictions,
    expected_targets,
    predict_by_client,
)
from fcorun.results.models.client_intercepts import difference_from_mean
from fcorun.results.scores.score import all_scores, compute_scores
from fcorun.results.scores.weighted_rows import ScoredRows, WeightedRows

# Predictions for rows whose target is known: the splits of a run, or the rows that folds hold out.


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictions:
    """The outputs of one model for n rows of one set whose targets are known.

    Attributes:
        objective: turns outputs into losses, probabilities and expected targets.
        data: the data that the rows are from.
        split: the set of the rows: train, validation, test or out_of_fold.
        model: SHARED or PERSONAL.
        clients: the client's name of each row, "" for none; None where clients are unknown.
        y: targets, (n,): numbers, or class indices.
        output: the output of the model with the row's offset, (n,) or (n, classes).
        row: the number of each row in the file, counted from 0; None: the rows are in the order of their set.
        repeated_columns: the columns ``data.keep``, text, (n, k), or None.
        remark: a remark on the prediction of each row, text, (n,), or None.
        group: the name of each row's group, (n,), or None.
        fold: the fold that held each row out, counted from 1, or None.
        threshold: the probability from which on a row is predicted to be of the positive class of a binary task.
    """

    objective: Objective
    data: FederatedData
    split: str
    model: str
    clients: np.ndarray | None
    y: np.ndarray
    output: np.ndarray
    row: np.ndarray | None = None
    repeated_columns: np.ndarray | None = None
    remark: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    threshold: float = DEFAULT_THRESHOLD

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def losses(self) -> dict[str, np.ndarray]:
        """The loss of each row, and the other scores that the objective declares, (n,) each."""
        return compute_losses(self.objective, self.output, self.y, self.client_numbers)

    @cached_property
    def client_numbers(self) -> np.ndarray:
        """A number for each row's client, (n,), 0 for all rows where clients are unknown."""
        return self.client_groups[1].astype(np.int32)

    @cached_property
    def client_groups(self) -> tuple[np.ndarray, np.ndarray]:
        """The names of the clients, sorted, and the position of each row's client among them, (n,).

        Rows of unknown clients have the name "".
        """
        return np.unique(np.full(len(self), "") if self.clients is None else self.clients, return_inverse=True)

    @cached_property
    def expected(self) -> np.ndarray | None:
        """The probabilities of the classes, (n, classes), or the expected targets, (n,); None: neither is defined."""
        if not self.data.classes:
            return expected_targets(self.objective, self.output)
        return class_probabilities(self.objective, self.output)

    @property
    def probability(self) -> np.ndarray | None:
        """The probability of the positive class of a binary task, (n,); None without probabilities."""
        if self.expected is None or not self.data.target_task.has_two_classes:
            return None
        return self.expected[:, 1]

    @cached_property
    def label(self) -> np.ndarray:
        """The index of the predicted class, (n,)."""
        if self.probability is None or self.threshold == DEFAULT_THRESHOLD:  # as the accuracy of the run has them
            return self.objective.classify(self.output)
        return (self.probability >= self.threshold).astype(int)

    def to_scored_rows(self) -> ScoredRows:
        """Return the rows as one group, as scores take them."""
        task = self.data.target_task
        target = self.y
        prediction = self.output.astype(float)
        log_odds = None
        probability = None
        if task.has_two_classes:
            log_odds = prediction
            probability = self.probability
        elif task.has_classes:
            probability = self.expected
        if task.has_classes:
            prediction = self.label
        elif task.is_quantity:
            target = np.asarray(self.y, float)
            if self.expected is not None:
                prediction = self.expected
        return ScoredRows(
            task=task,
            target=target,
            prediction=prediction,
            client=self.client_numbers,
            groups=RowGroups(np.zeros(len(self), int)),
            log_odds=log_odds,
            probability=probability,
            n_classes=len(self.data.classes),
            losses=self.losses,
            is_judged=self.expected is not None or not task.is_quantity,
        )


def predict_splits(
    objective: Objective,
    data: FederatedData,
    solution: Arrays | None,
    models: Arrays | None = None,
    remote_predictions: Callable[[], Arrays] = dict,
) -> list[Predictions]:
    """Return the predictions for all rows of each split, by the shared model and by the clients' personal models.

    Returns no predictions if nothing is held out, or if the model is not finite.

    Args:
        solution: the parameters by name of the shared model, or None.
        models: the parameters by name of the clients' personal models, with a leading axis M, or None.
        remote_predictions: returns predictions by set, without offsets, of sets with rows on other hosts.
    """
    parameters = [*(solution or {}).values(), *(models or {}).values()]
    if len(data.splits) < 2 or not all(np.isfinite(value).all() for value in parameters):
        return []
    return list(predict_rows(objective, data, solution, models, remote_predictions()))


def predict_rows(
    objective: Objective,
    data: FederatedData,
    solution: Arrays | None,
    models: Arrays | None = None,
    remote: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Predictions]:
    """Yield the predictions for all rows of each split, by the shared model and by the clients' personal models.

    Rows of clients without a personal model have predictions of the shared model alone. The arguments are those of
    ``predict_splits``, and ``remote`` has the predictions of sets with rows on other hosts.
    """
    for split, rows in data.splits.items():
        clients = data.client_of_row(split)
        if solution is not None:
            output = (remote or {}).get(split)
            if output is None:
                output = compute_predictions(objective, solution, rows.x, data.features.scale)
                output = output + difference_from_mean(solution, rows.client)
            yield describe_output(objective, data, rows, output, clients=clients, split=split, model=SHARED)
        if models is None or clients is None:
            continue
        output, has_model = predict_personal(objective, data, models, rows, clients)
        if has_model.any():
            yield describe_output(
                objective, data, rows, output, clients=clients, split=split, model=PERSONAL, index=has_model
            )


def predict_personal(
    objective: Objective, data: FederatedData, models: Arrays, rows: Rows, clients: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs of the personal models without offsets, and the mask of the rows whose client has a model, (n,).

    Clients that are held out wholly have no model.
    """
    index = {name: m for m, name in enumerate(data.client_names)}
    client = np.array([index.get(name, -1) for name in clients.tolist()], int)
    has_model = client >= 0
    if not has_model.any():
        return np.empty(0), has_model
    output = predict_by_client(objective, models, client[has_model], rows.x[has_model], data.features.scale)
    return output, has_model


def describe_output(
    objective: Objective,
    data: FederatedData,
    rows: Rows,
    output: np.ndarray,
    *,
    clients: np.ndarray | None,
    split: str,
    model: str,
    index: np.ndarray | slice = slice(None),
    fold: np.ndarray | None = None,
) -> Predictions:
    """Return the predictions of a model whose ``output``, without offsets, belongs to the rows at ``index``.

    ``clients`` and ``fold`` are those of all ``rows``.
    """

    def take(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[index]

    if rows.offset is not None:
        output = output + rows.offset[index]
    return Predictions(
        objective=objective.with_known_intercepts,
        data=data,
        split=split,
        model=model,
        clients=take(clients),
        y=rows.y[index],
        output=output,
        row=take(rows.row),
        repeated_columns=take(rows.repeated_columns),
        remark=take(rows.remark),
        group=take(rows.group),
        fold=take(fold),
    )


def predictions_csv(predictions: Sequence[Predictions]) -> str:
    """Return the text of predictions.csv, whose numbers read back exactly; empty without held-out rows.

    A row of the file has its ``set``, the name of its ``client``, its number in the file of the data (``row``, counted
    from 1), the number of its ``group`` if the data have groups, the columns of ``data.keep``, its ``target``, the
    ``prediction`` of a class or number, and the ``model``, shared or personal. Of two classes, ``positive`` has the
    ``probability``; of more, there is a ``probability_LABEL`` for each. A time to an event is a ``target``, with the
    ``event``, 0 or 1, and the linear predictor as ``prediction``. Rows of a selection have the ``fold`` that held them
    out. Where a held-out row has a level that no training row has, ``warnings`` says how it is coded.
    """
    held_out = [of_split for of_split in predictions if of_split.split != TRAIN]
    if not held_out:
        return ""
    names = [of_split.group for of_split in held_out if of_split.group is not None]
    group_names = np.unique(np.concatenate(names)) if names else np.empty(0)
    tables = [_tabulate(of_split, group_names) for of_split in held_out]
    if not any(any(table["warnings"]) for table in tables):
        for table in tables:
            del table["warnings"]
    return columns_csv({name: [value for table in tables for value in table[name]] for name in tables[0]})


def note_too_many_rows(predictions: Sequence[Predictions]) -> str:
    """Return a sentence if predictions.csv is left out for its number of rows; else empty."""
    n_rows = sum(len(of_split) for of_split in predictions if of_split.split != TRAIN)
    if n_rows <= MAX_PREDICTED_ROWS:
        return ""
    return f"{PREDICTIONS_FILE} is left out: it would have {n_rows:,} rows, more than {MAX_PREDICTED_ROWS:,}"


def _tabulate(predictions: Predictions, group_names: np.ndarray) -> dict[str, list]:
    """Return the columns of predictions.csv of these rows, in the order of the user's file.

    Groups have the numbers of their position in ``group_names``, from 1, since a name may be a patient's.
    """
    data = predictions.data
    n = len(predictions)
    number = np.arange(n) if predictions.row is None else predictions.row
    order = np.argsort(number, kind="stable")
    clients = np.full(n, "") if predictions.clients is None else predictions.clients
    columns = {"set": [predictions.split] * n, "client": clients[order].tolist(), "row": (number[order] + 1).tolist()}
    if predictions.group is not None:
        columns["group"] = (np.searchsorted(group_names, predictions.group[order]) + 1).tolist()
    if predictions.repeated_columns is not None:
        columns |= {name: predictions.repeated_columns[order, j].tolist() for j, name in enumerate(data.keep)}
    if data.target_task.is_quantity:
        predicted = predictions.output if predictions.expected is None else predictions.expected
        columns["target"] = predictions.y[order].astype(float).tolist()
        columns["prediction"] = predicted[order].astype(float).tolist()
    elif data.target_task.has_events:
        columns["target"] = np.abs(predictions.y[order]).astype(float).tolist()
        columns["event"] = (predictions.y[order] > 0).astype(int).tolist()
        columns["prediction"] = predictions.output[order].astype(float).tolist()
    else:
        labels = [str(label) for label in data.classes]
        columns["target"] = [labels[k] for k in predictions.y[order].tolist()]
        columns["prediction"] = [labels[k] for k in predictions.label[order].tolist()]
        if predictions.probability is not None:
            columns["positive"] = [labels[1]] * n
            columns["probability"] = predictions.probability[order].tolist()
        elif predictions.expected is not None:  # an objective that defines probabilities
            by_class = predictions.expected[order].T.tolist()
            columns |= {f"probability_{label}": values for label, values in zip(labels, by_class, strict=True)}
    columns["model"] = [predictions.model] * n
    if predictions.fold is not None:
        columns["fold"] = predictions.fold[order].tolist()
    columns["warnings"] = [""] * n if predictions.remark is None else predictions.remark[order].tolist()
    return columns


# scores.csv: the scores of a run's model on the training, validation and test rows, of all clients and of each.


def tabulate_scores(predictions: Sequence[Predictions]) -> list[dict[str, object]]:
    """Return the lines of scores.csv.

    A line is about a ``set`` (train, validation, test), a ``model`` (shared, or personal: each client's personal model)
    and a ``client``, empty for all clients. Then come ``n``, the number of data rows, for two classes and for times
    ``events``, the number of positive rows or of events, the scores that the objective declares, such as ``loss``, and
    those of ``fcorun.results.scores``. For two
    classes, ``positive`` names the class that events, sensitivity, prevalence and probabilities are about. Scores that
    the rows do not define are empty. Each row counts once, whatever its training weight.
    """
    lines = []
    for of_split in predictions:
        data = of_split.data
        names, row_group = of_split.client_groups
        group = {str(name): g for g, name in enumerate(names)}
        trained = [name for name in data.client_names if name in group]
        held_out = [name for name in group if name and name not in set(trained)]
        rows = of_split.to_scored_rows()
        together = _score_groups(rows)
        by_client = _score_groups(rows.in_groups(row_group))
        for client in ("", *trained, *held_out):
            row: dict[str, object] = {"set": of_split.split, "model": of_split.model, "client": client}
            if data.target_task.has_two_classes:
                row["positive"] = str(data.classes[1])
            for name, values in (by_client if client else together).items():
                row[name] = values[group[client] if client else 0]
            lines.append(row)
    return lines


def _score_groups(rows: ScoredRows) -> dict[str, list[object]]:
    """Return the columns of scores.csv of each group of rows, "" for nan."""
    weighted = WeightedRows.each_once(rows)
    columns: dict[str, np.ndarray] = {"n": weighted.n.astype(int)}
    for name in ("positive", "events"):
        if name in weighted:
            columns["events"] = weighted[name].astype(int)
    scores = compute_scores(weighted)
    for name, losses in rows.losses.items():
        if name not in scores:
            columns[name] = weighted.total(losses) / weighted.n
    for name, values in scores.items():
        if all_scores()[name].in_scores_csv:
            columns[name] = values
    return {
        name: np.where(np.isnan(values[0]), "", values[0].astype(object)).tolist() for name, values in columns.items()
    }


# The levels of columns of text that few training rows, or few of their events, support.


def find_few_levels(data: FederatedData) -> dict[str, str]:
    """Return the levels with few training rows or events, by feature, in words: {"ward=eye": "no events in 30 rows"}.

    Levels that the rows or events of few groups have are named, too.

    The coefficients of such levels say little, and without a penalty those of levels without an event are not finite.
    Events are rows of the positive class, or times that are not censored. Nothing is found in rows on disk, on other
    hosts or at sites, and in features that were standardized within each client.
    """
    train = data.train
    encoding = data.features.encoding
    is_here = isinstance(train.x, np.ndarray) and len(train) == train.n_rows
    if not is_here or encoding is None or data.features.standardized_by not in ("none", "pooled"):
        return {}
    from fcorun.results.inference.sums import ClusterCounts
    from fcorun.results.models.inference import describe_few, describe_few_clusters, least_clusters

    is_event = data.target_task.find_events(train.y)
    few = {}
    for column in encoding.columns:
        for name in column.features if column.has_levels else ():
            values = train.x[:, data.features.names.index(name)]
            has_level = values > values.min()
            n_events = None if is_event is None else int((has_level & is_event).sum())
            has_two_classes = data.target_task.has_two_classes
            reason = describe_few(int(has_level.sum()), n_events, has_two_classes)
            if train.group is not None and not reason:
                has_event = np.zeros(len(has_level), bool) if is_event is None else is_event
                counts = ClusterCounts(
                    *(n[0] for n in ClusterCounts.of_rows(has_level[:, None], has_event, train.group))
                )
                options = {"has_events": is_event is not None, "has_two_classes": has_two_classes}
                least = least_clusters(len(np.unique(train.group)))
                reason = describe_few_clusters(counts, "group", **options, least=least)
            if has_level.any() and reason:
                few[name] = reason
    return few


# The outcome of a table in numbers: rows and events, or the mean and deviation of a target, by split and client.

_MAX_CLIENTS = 200


def summarize_outcome(data: FederatedData) -> list[dict[str, object]]:
    """Return a row for each split and client: ``rows``, and ``events`` or ``mean`` and ``deviation`` of the target.

    The client is "" in the rows on all clients together, which come first. Events are rows of the positive class, or
    times that are not censored. There are no rows for data without named features, on other hosts or at sites, and
    none by client for more than 200 clients.
    """
    on_other_hosts = isinstance(data.train, SiteRows) or len(data.train) < data.train.n_rows
    if on_other_hosts or data.features.encoding is None:
        return []
    names = ["", *data.client_names, *data.held_out_clients]
    summary: list[dict[str, object]] = []
    for split, rows in data.splits.items():
        y = np.asarray(rows.y)
        clients = data.client_of_row(split)
        for name in names if clients is not None and len(names) <= _MAX_CLIENTS + 1 else names[:1]:
            targets = y[clients == name] if name else y
            if name and not len(targets):
                continue
            summary.append({"set": split, "client": name, "rows": len(targets)})
            events = data.target_task.find_events(targets)
            if events is not None:
                summary[-1]["events"] = int(events.sum())
            elif data.target_task.is_quantity:
                targets = targets.astype(float)
                deviation = float(targets.std(ddof=1)) if len(targets) > 1 else math.nan
                summary[-1]["mean"] = float(targets.mean())
                summary[-1]["deviation"] = None if math.isnan(deviation) else deviation
    return summary


_MODELS = {SHARED: "the shared model", PERSONAL: "the personal models"}
_ROWS = {"validation": "validation rows", "out_of_fold": "rows out of fold"}


@dataclass(frozen=True)
class ChosenThresholds:
    """The thresholds of the models of a run.

    Attributes:
        rule: the rule as ``threshold`` gives it.
        chosen_on: the set of rows that the rule was applied to, "" for a number.
        values: the threshold by model: shared, personal.
        warnings: a sentence each.
    """

    rule: float | str
    chosen_on: str
    values: dict[str, float]
    warnings: tuple[str, ...] = ()

    def apply(self, predictions: Sequence[Predictions]) -> list[Predictions]:
        """Return the predictions with the threshold of their model."""
        return [replace(p, threshold=self.values.get(p.model, DEFAULT_THRESHOLD)) for p in predictions]

    def to_json(self) -> dict[str, Any]:
        """Return the section ``threshold`` of summary.json and selection.json."""
        return {"rule": self.rule, "chosen_on": self.chosen_on, **self.values, "warnings": list(self.warnings)}


def fixed_thresholds(threshold: float | str) -> ChosenThresholds:
    """Return the thresholds of a rule that is a number: this number for the shared and for the personal models."""
    rule = ThresholdRule.parse(threshold)
    assert not rule.needs_rows
    return ChosenThresholds(rule.text, "", dict.fromkeys((SHARED, PERSONAL), rule.value))


def choose_thresholds(
    predictions: Sequence[Predictions], threshold: float | str, split: str = "validation", unweighted: str = ""
) -> ChosenThresholds:
    """Choose the threshold of each model by a rule on the rows of ``split``, which are no test rows.

    A model without such rows, as the personal models if whole clients are held out, has the threshold of the shared
    model. Predictions without probabilities are passed over. ``unweighted`` says that each row counts once, if rows
    have weights.
    """
    rule = ThresholdRule.parse(threshold)
    values: dict[str, float] = {}
    warnings = []
    if rule.needs_rows and unweighted:
        warnings.append(word(f"`threshold={rule.text}`: {unweighted}"))
    has_personal = any(model_predictions.model == PERSONAL for model_predictions in predictions)
    for model_predictions in predictions:
        if model_predictions.split != split or model_predictions.probability is None:
            continue
        rows = _ROWS[split] + (f" by {_MODELS[model_predictions.model]}" if has_personal else "")
        values[model_predictions.model], warning = rule.choose(model_predictions.y, model_predictions.probability, rows)
        if warning and warning not in warnings:
            warnings.append(warning)
    fallback = values.get(SHARED, DEFAULT_THRESHOLD) if rule.needs_rows else rule.value
    for model_predictions in predictions:
        values.setdefault(model_predictions.model, fallback)
    return ChosenThresholds(rule.text, split if rule.needs_rows else "", values, tuple(warnings))
