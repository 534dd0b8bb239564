"""The strengths of a simulation study: each run of a sweep chooses its own by cross-validation on its own rows."""

from dataclasses import replace
from typing import Any

from fcorun.base.errors import UserError, word
from fcorun.engine.engine import CompiledPrograms
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import replace_plugins
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

_MOST_PROGRAMS = 64
_programs: dict[str, CompiledPrograms] = {}  # of replicates that differ in their rows alone


def choose_strength(experiment: PreparedExperiment) -> tuple[PreparedExperiment, dict[str, Any]]:
    """Return the experiment with the strength that ``fcorun select`` chooses on its rows, and what the choice was.

    The choice is by the held-out loss, by the rows and the seed of the experiment. The dict has the ``strength``, the
    ``rule``, the number of ``folds``, the ``metric``, the ``cost`` (runs, rounds, bytes_up and bytes_down of all fits)
    and ``warnings``. Compiled programs are kept for other choices. Raises UserError as ``plan_selection``, and if
    every strength diverged on a fold.
    """
    study = experiment.settings.strength_study
    if study is None:
        raise ValueError("the experiment chooses no strength")
    if not hasattr(experiment.reg, "strength"):
        raise UserError(f"`study.strength={study.strength}`: `reg={experiment.names['reg']}` has no strength to "
                        "choose: take a penalty such as `reg=l1`, or leave `study.strength` out")  # fmt: skip
    settings = replace(experiment.settings, study=None, metric=None, threshold=DEFAULT_THRESHOLD)
    rule = "one_se" if study.strength == "one_se" else "min"
    options = SelectOptions(folds=study.folds, points=study.points, rule=rule)
    try:
        plan = plan_selection(replace_plugins(experiment, settings), options)
    except UserError as error:
        raise UserError(f"`study.strength={study.strength}`, whose folds are `study.folds`: {error}") from error
    names = list(plan.study.subsets)
    if len(_programs) > _MOST_PROGRAMS:
        _programs.clear()
    fits = {}
    for name, fit in zip(names, plan.study.fit_subsets(names, _programs), strict=True):
        fits[name] = plan.reduce_fit(name, fit)
    selection = plan.conclude(fits)
    strength = float(selection.path.values[selection.choice.chosen_index])
    config = experiment.config | {"reg": experiment.config["reg"] | {"strength": strength}}
    chosen = experiment.with_resolved(reg=experiment.reg.with_value("strength", strength), config=config)
    description = {
        "strength": strength,
        "rule": study.strength,
        "folds": selection.options.folds,
        "metric": selection.metric,
        "cost": selection.cost,
        "warnings": [word(sentence) for sentence in selection.warnings],
    }
    return chosen, description
