"""The way from a plain configuration to an experiment: checked plug-ins that fit each other."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from fcorun.config import Settings, build, build_plugin
from fcorun.datasets.base import FederatedData
from fcorun.engine.evaluate import why_unranked
from fcorun.errors import UnknownMetric, UserError, suggest_name
from fcorun.experiment.compatibility import (
    check_compatibility,
    check_optimum,
    check_start,
    check_stop,
    full_batch_settings,
)
from fcorun.experiment.experiment import Experiment
from fcorun.metrics import PERSONAL_PREFIX, RANKING_METRICS, TEST_METRIC_REFUSAL, TEST_PREFIX
from fcorun.objectives.base import Objective
from fcorun.regularizers.base import Regularizer
from fcorun.sections import IDENTITY_SECTIONS, SECTIONS


def prepare(config: Mapping[str, Any]) -> Experiment:
    """Build the experiment of a configuration: one plug-in for each section, and the settings of the root keys.

    Raises UserError for an unknown or missing key, a value of the wrong type or out of range, a plug-in that cannot be
    found, and plug-ins that do not fit each other. Reads and writes no files.
    """
    settings = _build_settings({key: value for key, value in config.items() if key not in (*SECTIONS, "figure")})
    plugins: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, section in SECTIONS.items():
        values = config.get(name) or section.default
        if not isinstance(values, Mapping):
            raise UserError(f"the section '{name}' is missing: give {name}=NAME")
        if name == "reg" and values.get("relative") is not None:
            values = {**values, "strength": 0.0}  # a placeholder: the strength follows from the data
        plugins[name] = plugin = build_plugin(name, values)
        names[name] = str(values.get("name", type(plugin).__name__.lower()))
        if not isinstance(plugin, section.base_classes):
            base_names = " or ".join(path.rpartition(".")[2] for path in section.base_class_paths)
            raise UserError(f"{name}.class={values['class']} is no {base_names}; "
                            f"derive the class from {section.base_class_paths[0]}")  # fmt: skip
    if plugins["algo"].traits.deterministic:
        settings = full_batch_settings(settings, names["algo"])
    check_compatibility(plugins, names)
    check_start(plugins, names, settings)
    check_optimum(plugins, names, settings)
    resolved_config = asdict(settings)
    del resolved_config["hosts"]  # hosts belong to one invocation, not to the experiment
    for name in IDENTITY_SECTIONS:
        resolved_config[name] = plugin_to_config(plugins[name], names[name], config.get(name) or {})
    if settings.start:
        plugins["data"] = plugins["data"].with_record_encoding(settings.start)
    experiment = Experiment(**plugins, settings=settings, config=resolved_config, names=names)
    check_metric(settings.metric, experiment)
    check_stop(experiment)
    return experiment


def check_metric(metric: str | None, experiment: Experiment) -> None:
    """Refuse a metric by which runs cannot be compared.

    Such metrics are unknown to the catalogue and the objective, are better in no direction, belong to the test rows,
    or are the gap to a reference optimum that the experiment does not compute. Raises UnknownMetric.
    """
    if metric is None:
        return
    if metric.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
        raise UnknownMetric(f"metric={metric} is refused: {TEST_METRIC_REFUSAL}")
    if metric not in experiment.metrics.comparable:
        raise UnknownMetric(f"metric={metric} is not a choice: {suggest_name(metric, experiment.metrics.comparable)}")
    if metric == "suboptimality" and not experiment.settings.reference:
        raise UnknownMetric("metric=suboptimality is the gap to a reference optimum: give reference=true as well")


def explain_unmeasured(metric: str, experiment: Experiment, data: FederatedData) -> str:
    """Return why runs of an experiment on these data will not measure a metric; empty if they may."""
    name, names = metric.removeprefix(PERSONAL_PREFIX), experiment.names
    if name.startswith("val_") and (data.y_val is None or not len(data.y_val)):
        return f"data={names['data']} have no validation rows"
    if not (metric.startswith(PERSONAL_PREFIX) or experiment.has_shared_model):
        return f"algo={names['algo']} makes no model for all clients"
    objective_metrics = {metric.name for metric in experiment.objective.metrics}
    classifies = data.task != "regression" and type(experiment.objective).scores is not Objective.scores
    if "accuracy" in name and not (classifies or name.partition("_")[2] in objective_metrics):
        return f"objective={names['objective']} has no accuracy"
    if name in RANKING_METRICS.values() and name.removeprefix("val_") not in objective_metrics:
        reason = why_unranked(data)
        if reason:
            return f"of data={names['data']} nothing is ranked, since {reason}"
    if name.startswith(("support_", "recovery_")) and not (data.truth or data.client_truths):
        return f"data={names['data']} have no true model to compare with"
    return ""


def _build_settings(values: dict[str, Any]) -> Settings:
    """Build the settings, in which one of ``local_epochs`` and ``local_steps`` is None. Raises UserError."""
    settings = build(Settings, values)
    if settings.local_steps is not None:
        if settings.local_epochs not in (None, 1):
            raise UserError("local_epochs and local_steps exclude each other: set one of them to null")
        return replace(settings, local_epochs=None)
    if settings.local_epochs is None:
        raise UserError("local_epochs and local_steps are both null: set one of them")
    return settings


def plugin_to_config(plugin: Any, name: str, section_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plug-in and its name as plain values, from which the plug-in can be built again.

    Args:
        section_config: the configuration of its section; the ``title`` is taken from there.
    """
    config = {"name": name, "class": f"{type(plugin).__module__}.{type(plugin).__qualname__}"}
    if section_config.get("title"):
        config["title"] = str(section_config["title"])
    fields = asdict(plugin)
    if isinstance(plugin, Regularizer) and plugin.relative_or_none is not None:
        del fields["strength"]
    return config | fields
