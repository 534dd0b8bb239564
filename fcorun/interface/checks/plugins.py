"""The checks of plug-ins that overrides choose, such as ``algo=mine``."""

import re
from collections.abc import Callable, Iterator, Sequence

from fcorun.base.config import build_plugin
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.system.machine import use_precision
from fcorun.data.tasks import find_task, find_tasks
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.checks import (
    algorithms,
    communication,
    datasets,
    mirror_maps,
    objectives,
    regularizers,
    rounds,
    scores,
    tasks,
)
from fcorun.interface.checks.problems import compose_cached, small
from fcorun.interface.checks.property_check import CheckResult, run_checks
from fcorun.results.scores.score import all_scores

Results = Iterator[tuple[str, Iterator[CheckResult]]]  # a title and the results below it, one plug-in after the other


def check_algorithm(name: str, overrides: Sequence[str]) -> Results:
    """Check ``algo=NAME``. Raises UserError for a configuration that cannot be composed."""
    case = algorithms.AlgorithmCase(name, tuple(overrides))
    _ = case.algorithm
    yield f"algo={name}", run_checks(algorithms.CHECKS, case)


def check_regularizer(name: str, overrides: Sequence[str]) -> Results:
    """Check ``reg=NAME`` on a vector and on a matrix. Raises UserError for a regularizer that accepts neither."""
    reg = build_plugin("reg", small(f"reg={name}", *overrides)["reg"])
    cases = regularizers.regularizer_cases(reg)
    if not cases:
        tried = " nor ".join(f"an array of shape {shape}" for shape in regularizers.SHAPES)
        raise UserError(f"reg={name} takes neither {tried}, the only shapes that are checked")
    for case in cases:
        yield f"reg={name} on an array of shape {case.shape}", run_checks(regularizers.CHECKS, case)
    takes_vectors = len(cases[0].shape) == 1
    yield (
        f"reg={name} in a run",
        run_checks(rounds.CHECKS, rounds.regularizer_rounds(name, tuple(overrides), takes_vectors)),
    )


def check_mirror_map(name: str, overrides: Sequence[str]) -> Results:
    """Check ``mirror=NAME`` alone, with each regularizer that it supports, and in a run.

    Raises UserError for overrides that cannot be composed.
    """
    mirror = build_plugin("mirror", small("reg=none", f"mirror={name}", *overrides)["mirror"])
    yield f"mirror={name}", run_checks(mirror_maps.CHECKS, mirror)
    for other in find_choices("reg"):
        try:
            reg = build_plugin("reg", small(f"reg={other}")["reg"])
        except UserError:  # the regularizer has required keys
            continue
        if mirror.supports(reg):
            pair = mirror_maps.PairCase(mirror, reg)
            yield f"mirror={name} reg={other}", run_checks(mirror_maps.PAIR_CHECKS, pair)
    yield f"mirror={name} in a run", run_checks(rounds.CHECKS, rounds.mirror_map_rounds(name, tuple(overrides)))


def check_objective(name: str, overrides: Sequence[str]) -> Results:
    """Check ``objective=NAME`` with each of its tasks, alone and in a run.

    Raises UserError for overrides that cannot be composed, and for an objective whose tasks are all unknown.
    """
    is_checked = False
    for task in find_tasks().values():
        table = ("data=table", "data.path=rows.npz", f"data.task={task.name}")  # the file is never read
        objective = build_plugin("objective", compose_cached(f"objective={name}", *table, *overrides)["objective"])
        if task.name in objective.tasks:
            is_checked = True
            case = objectives.ObjectiveCase(objective, task)
            yield f"objective={name} data.task={task.name}", run_checks(objectives.CHECKS, case)
            run = rounds.objective_rounds(name, tuple(overrides), case)
            yield f"objective={name} data.task={task.name} in a run", run_checks(rounds.CHECKS, run)
    if not is_checked:
        raise UserError(f"objective={name} has none of the tasks that are checked: let its class have tasks among "
                        f"{', '.join(find_tasks())}")  # fmt: skip


def check_task(name: str, overrides: Sequence[str]) -> Results:
    """Check ``task=NAME``, a task of fcorun or of an installed package, alone and in a run.

    Raises UserError for an unknown task.
    """
    task = find_task(name)
    yield f"task={name}", run_checks(tasks.CHECKS, task)
    yield f"task={name} in a run", run_checks(rounds.CHECKS, rounds.task_rounds(task))


def check_dataset(name: str, overrides: Sequence[str]) -> Results:
    """Check ``data=NAME``. Raises UserError for data that cannot be composed or loaded."""
    case = datasets.DatasetCase(name, tuple(overrides))
    _ = case.data
    yield f"data={name}", run_checks(datasets.CHECKS, case)
    yield f"data={name} in a run", run_checks(rounds.CHECKS, rounds.data_rounds(case.config))


def check_topology(name: str, overrides: Sequence[str]) -> Results:
    """Check ``topology=NAME``. Raises UserError for a topology that no algorithm can use."""
    case = communication.CommunicationCase("topology", name, tuple(overrides))
    yield f"topology={name} algo={case.run.name}", run_checks(communication.TOPOLOGY_CHECKS, case)


def check_uplink(name: str, overrides: Sequence[str]) -> Results:
    """Check ``uplink=NAME``. Raises UserError for a channel that no algorithm can use."""
    return _check_channel("uplink", name, overrides)


def check_downlink(name: str, overrides: Sequence[str]) -> Results:
    """Check ``downlink=NAME``. Raises UserError for a channel that no algorithm can use."""
    return _check_channel("downlink", name, overrides)


def _check_channel(section: str, name: str, overrides: Sequence[str]) -> Results:
    case = communication.CommunicationCase(section, name, tuple(overrides))
    yield f"{section}={name} algo={case.run.name}", run_checks(communication.CHANNEL_CHECKS, case)


def check_clock(name: str, overrides: Sequence[str]) -> Results:
    """Check ``clock=NAME``. Raises UserError for a clock that cannot be composed."""
    clock = build_plugin("clock", small(f"clock={name}", *overrides)["clock"])
    yield f"clock={name}", run_checks(communication.CLOCK_CHECKS, clock)


def check_score(name: str, overrides: Sequence[str]) -> Results:
    """Check ``score=NAME`` for each task that it judges. Raises UserError for a score that does not exist."""
    if name not in all_scores():
        raise UserError(f"there is no score={name}: {suggest_name(name, all_scores())}")
    for case in scores.score_cases():
        if case.score.name == name:
            yield f"score={name} of a task that is {case.task.name}", run_checks(scores.CHECKS, case)


PLUGINS: dict[str, Callable[[str, Sequence[str]], Results]] = {
    "algo": check_algorithm,
    "clock": check_clock,
    "data": check_dataset,
    "mirror": check_mirror_map,
    "objective": check_objective,
    "reg": check_regularizer,
    "score": check_score,
    "task": check_task,
    "topology": check_topology,
    "uplink": check_uplink,
    "downlink": check_downlink,
}


def check(overrides: Sequence[str]) -> Results:
    """Check each plug-in that overrides choose, with the ``KEY=VALUE`` overrides of its section.

    Raises UserError for an override of any other section, for a text without "=", and for two choices of a section.
    """
    usage = f"give {', '.join(f'{section}=NAME' for section in PLUGINS)}, and values of its keys"
    pairs = [text.partition("=")[::2] for text in overrides]
    chosen: dict[str, str] = {}
    for section, name in pairs:
        if section in chosen:
            raise UserError(f"{section}={name} comes after {section}={chosen[section]}: check one {section} at a time")
        if section in PLUGINS:
            chosen[section] = name
    for text in overrides:
        if re.split("[.=]", text.lstrip("+"))[0] not in chosen or "=" not in text:
            raise UserError(f"'{text}' is of no plug-in that is to be checked: {usage}")
    for section, name in chosen.items():
        section_overrides = [text for text in overrides if text.lstrip("+").startswith(f"{section}.")]
        with use_precision("float64" if section in ("mirror", "objective", "reg") else "float32"):
            yield from PLUGINS[section](name, section_overrides)
