"""Selections and stability selections that are planned and run in one call."""

from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.select_stable import plan_stability
from fcorun.studies.selection.selection_result import Selection, SelectOptions
from fcorun.studies.selection.stability import StabilityOptions, StabilityResult


def select(config, options: SelectOptions | None = None, out=None, **callbacks) -> Selection:
    """Choose a strength for a configuration, or an experiment, by cross-validation, and refit the model."""
    return plan_selection(config, options or SelectOptions(), out).run(**callbacks)


def select_stable_features(config, options: StabilityOptions | None = None, out=None, **callbacks) -> StabilityResult:
    """Run a path on halves of the training rows, and find the features that most choose."""
    return plan_stability(config, options or StabilityOptions(), out).run(**callbacks)
