"""The candidates of a comparison: each is a selection of its own, on the same folds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.compared import PERSONAL_ALGORITHMS, SHARED_MODEL_ALGORITHM
from fcorun.studies.selection.comparison.comparison_options import (
    LOCAL,
    NEW_CLIENT,
    SHARED,
    STANDARDIZED,
    CompareOptions,
)
from fcorun.studies.selection.cross_validation.select_strength import SelectionPlan, plan_selection
from fcorun.studies.selection.cross_validation.selection_options import SelectOptions
from fcorun.studies.selection.folds import list_marked_folds
from fcorun.studies.selection.path import applies_regularizer

Compose = Callable[[list[str]], dict[str, Any]]  # from overrides to a configuration
DEFAULT_OUTER_FOLDS = 5


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
    configs: Mapping[str, Mapping[str, Any]], options: CompareOptions, folder: Callable[[str], str]
) -> tuple[dict[str, SelectionPlan], list[str]]:
    """Return the selection of each candidate, and a sentence for each one that these data do not allow.

    ``folder`` gives the folder of a candidate. Raises UserError if there is no selection of the shared model.
    """
    experiment = prepare({**configs[SHARED], "metric": None})
    if n_tables := experiment.settings.imputations:
        raise UserError(f"imputations={n_tables} averages shared models, and compare also trains own ones of clients, "
                        "by gaps filled once: leave imputations out")  # fmt: skip
    data = load_data(experiment)
    if data.task == "regression" and not hasattr(experiment.objective, "response"):
        raise UserError(f"the predictions of objective={experiment.names['objective']} are no expected values, whose "
                        "squared errors compare models: give another objective")  # fmt: skip
    n_outer = options.outer_folds or len(list_marked_folds(data)) or DEFAULT_OUTER_FOLDS
    n_inner = n_outer if list_marked_folds(data) else options.folds
    plans, left_out = {}, []
    for name, config in configs.items():
        by, inner, outer = "rows", n_inner, n_outer
        if name == NEW_CLIENT:
            if reason := _why_no_client_is_held_out(data):
                left_out.append(f"{name} is left out: {reason}")
                continue
            by, inner, outer = "clients", min(n_inner, len(data.client_names)), len(data.client_names)
        if name in options.method_names and not prepare({**config, "metric": None}).algo.has_personal_models:
            raise UserError(f"methods={name}: algo={name} trains no own models for clients: leave it out")
        choice = SelectOptions(
            folds=inner,
            points=options.points,
            rule=options.rule,
            range=options.range,
            by=by,
            outer_folds=outer,
        )
        try:
            plans[name] = _plan_candidate(config, choice, folder(name))
        except UserError as error:
            if name == SHARED:
                raise
            left_out.append(f"{name} is left out: {error}")
    return plans, left_out


def _why_no_client_is_held_out(data: FederatedData) -> str:
    """Return why the folds cannot hold out one client after the other; empty if they can."""
    if list_marked_folds(data):
        return "data.fold marks folds of rows, so that no client is held out"
    return "" if len(data.client_names) > 2 else "it needs three clients or more"


def _plan_candidate(config: Mapping[str, Any], choice: SelectOptions, folder: str) -> SelectionPlan:
    """Return the selection of a candidate, whose own models are judged if it has some. Raises UserError.

    Own models are chosen by their loss where the folds do not measure the metric of the configuration for them. An
    algorithm that ignores psi has nothing to choose: its folds are the outer ones.
    """
    experiment = prepare({**config, "metric": None})
    metric = config.get("metric")
    if experiment.algo.has_personal_models and metric:
        metric = f"personal_val_{metric.removeprefix('personal_').removeprefix('val_')}"
        if metric not in experiment.metrics:  # the folds measure no ranking of own models
            metric = "personal_val_loss"
    if applies_regularizer(experiment.algo):
        return plan_selection(config, choice, folder, metric)
    fixed = SelectOptions(folds=choice.outer_folds, by=choice.by)
    return plan_selection(config, fixed, folder, metric, varies_strength=False)
