"""The threshold between two classes of each model of a run, chosen by a rule on held-out rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.results.models.predictions import Predictions

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
    predictions: Sequence[Predictions], threshold: float | str, split: str = "validation"
) -> ChosenThresholds:
    """Choose the threshold of each model by a rule on the rows of ``split``, which are no test rows.

    A model without such rows, as the personal models if whole clients are held out, has the threshold of the shared
    model. Predictions without probabilities are passed over.
    """
    rule = ThresholdRule.parse(threshold)
    values: dict[str, float] = {}
    warnings = []
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
