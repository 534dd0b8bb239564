"""The common steps of fcorun select, stability, permute and compare, from their arguments to the exit code."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from fcorun.base.config import build
from fcorun.base.errors import UserError
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import warn_overridden
from fcorun.interface.cli.commands.common_command import CommandParser, read_folder, warn_of_formulas
from fcorun.interface.cli.terminal import Terminal
from fcorun.reports.page import write as html_report

if TYPE_CHECKING:
    from fcorun.runs.executors.executor import LauncherOptions

T = TypeVar("T")


def run_study(
    name: str,
    description: str | None,
    keys: str,
    argv: Sequence[str],
    import_kind: Callable[[], tuple[type, Callable]],
    has_page: bool = True,
) -> int:
    """Run the command ``name``, which takes ``keys`` beside those of a run; return the exit code.

    Args:
        import_kind: imports and returns the dataclass of the options, and the function that plans the study from the
            configuration, its overrides, the options, and the folder or None.
        has_page: whether the folder of the study gets a report page.
    """
    parser = CommandParser(name, description, folders=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"those of a run, and: {keys}")
    arguments = parser.parse_args(argv)
    from fcorun.base.system.machine import require_single_host, set_up_jax

    set_up_jax()
    options_class, plan_study = import_kind()
    warn_overridden()
    launcher_values, given = split_launcher(arguments.overrides)
    options, overrides, out = split_options(options_class, given)
    config = compose(overrides)
    require_single_host(f"fcorun {name}", config["hosts"])
    show = Terminal(config.get("verbose", True) is not False).print
    launcher = read_launcher(launcher_values)
    plan = plan_study(config, overrides, options, out)
    for line in plan.messages:
        show(line)
    if config.get("dry_run") is True:
        for line in plan.describe_progress():
            show(line)
        return 0
    with run_by(launcher, show):
        result = plan.run(show)
    report_lines = []
    if has_page and config.get("report") is not False:
        report_lines = html_report.write_report(result.folder)
    for line in (*result.describe(), *warn_of_formulas(sorted(result.folder.glob("*.csv"))), *report_lines):
        show(line)
    return 0 if result.is_complete else 1


def split_launcher(given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split KEY=VALUE texts into the values of hydra.launcher, and the others. Raises UserError."""
    prefix = "hydra.launcher."
    values = {}
    others = []
    for text in given:
        if text.startswith(prefix):
            override = _parse_override(text, "give one value")
            values[override.key_or_group.removeprefix(prefix)] = override.value()
        else:
            others.append(text)
    return values, others


def read_launcher(values: dict[str, Any]) -> "LauncherOptions":
    """Return the options of where the fits of a study are computed. Raises UserError."""
    from fcorun.runs.executors.executor import LauncherOptions, check_launcher

    check_launcher(values)
    for name in ("batch", "pictures"):
        if name in values:
            raise UserError(f"`hydra.launcher.{name}` is of sweeps, and a study has none: leave it out")
    options: LauncherOptions = build(LauncherOptions, values)
    if options.executor not in ("inline", "dask"):
        raise UserError(
            f"`hydra.launcher.executor={options.executor}` is of sweeps: give `hydra.launcher.executor=dask`"
        )
    return options


@contextmanager
def run_by(options: "LauncherOptions", show: Callable[[str], None]) -> Iterator[None]:
    """Have the fits of a study computed where the options say, within the context. Raises UserError."""
    from fcorun.runs.executors.dask import DaskExecutor, study_workers

    if options.executor == "inline":
        yield
        return
    executor = DaskExecutor(options)
    executor.start([], show)
    token = study_workers.set(executor)
    try:
        yield
    finally:
        study_workers.reset(token)
        executor.close()


def split_options(options_class: type[T], given: Sequence[str]) -> tuple[T, list[str], str | None]:
    """Split KEY=VALUE texts into the options of a command, the overrides of its configuration, and ``out``.

    Raises UserError for an option with an invalid value.
    """
    option_names = {field.name for field in fields(options_class)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    overrides = []
    out = None
    for text in given:
        key, equals, _ = text.partition("=")
        if not equals:
            raise UserError(f"'{text}' is not KEY=VALUE")
        if key == "out":
            out = read_folder(text)
            continue
        if key not in option_names:
            several = _read_several(text) if "second" in option_names else []
            if several:
                values.setdefault("second", {})[key] = several
                text = f"{key}={min(several)!r}"
            overrides.append(text)
            continue
        if key == "relax" and (several := _read_several(text)):
            values[key] = several
            continue
        override = _parse_override(text, "give one value, or range=[LOW,HIGH]")
        if override.is_sweep_override():
            raise UserError(f"{text}: give one value of {key}")
        values[key] = override.value()
        if key == "range" and isinstance(values[key], (int, float)):
            raise UserError(f"{text} must be two numbers, the least and the largest: give range=[LOW,HIGH]")
    return build(options_class, values), overrides, out


def _parse_override(text: str, advice: str) -> Override:
    """Return a text KEY=VALUE as Hydra reads it. Raises UserError, which ends with ``advice``, for other texts."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise UserError(f"{text} cannot be read: {advice}") from error


def _read_several(text: str) -> list[float]:
    """Return the numbers of an override such as reg.l1_ratio=0.1,0.5; an empty list for one value, and for texts."""
    try:
        value = _parse_override(text, "").value()
    except UserError:
        return []
    numbers = value.list if isinstance(value, ChoiceSweep) else []
    real = [float(number) for number in numbers if isinstance(number, (int, float)) and not isinstance(number, bool)]
    return real if len(real) == len(numbers) else []
