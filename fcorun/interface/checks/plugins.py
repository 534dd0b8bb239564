"""The checks of plug-ins that overrides choose, such as ``algo=mine``."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.interface.checks import (
    algorithms,
    communication,
    datasets,
    mirror_maps,
    objectives,
    regularizers,
    scores,
    tasks,
)
from fcorun.interface.checks.property_check import Checked, CheckResult, run_checks

# for each section, the checks of a choice with overrides of its keys
PLUGINS: dict[str, Callable[[str, Sequence[str]], Checked]] = {
    "algo": algorithms.list_checks,
    "clock": communication.list_clock_checks,
    "data": datasets.list_checks,
    "faults": partial(communication.list_checks, "faults"),
    "mirror": mirror_maps.list_checks,
    "objective": objectives.list_checks,
    "privacy": partial(communication.list_checks, "privacy"),
    "reg": regularizers.list_checks,
    "score": scores.list_checks,
    "task": tasks.list_checks,
    "topology": partial(communication.list_checks, "topology"),
    "uplink": partial(communication.list_checks, "uplink"),
    "downlink": partial(communication.list_checks, "downlink"),
    "aggregate": partial(communication.list_checks, "aggregate"),
}


def check(overrides: Sequence[str]) -> Iterator[tuple[str, Iterator[CheckResult]]]:
    """Check each plug-in that overrides choose, with the ``KEY=VALUE`` overrides of its section.

    Yields titles, each with the results below the title. Raises UserError for an override of any other section, for a
    text without "=", for two choices of a section, and for a choice that cannot be composed.
    """
    usage = f"give {', '.join(f'{section}=NAME' for section in PLUGINS)}, and values of its keys"
    chosen: dict[str, str] = {}
    for text in overrides:
        section, _, name = text.partition("=")
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
            for title, checks, subject in PLUGINS[section](name, section_overrides):
                with use_precision("float64") if getattr(subject, "needs_float64", False) else nullcontext():
                    yield title, run_checks(checks, subject)
