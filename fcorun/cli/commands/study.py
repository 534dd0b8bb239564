"""What fcorun select and fcorun stability have in common: from their arguments to what was found."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from rich.markup import escape

from fcorun.cli import html_report
from fcorun.cli.commands.common import CommandParser, make_console
from fcorun.config import build
from fcorun.configuration.compose import compose
from fcorun.configuration.search_path import use_config_dir, warn_overridden
from fcorun.errors import UserError

T = TypeVar("T")


def run_study(
    name: str, about: str | None, keys: str, argv: Sequence[str], parts: Callable[[], tuple[type, Callable, Callable]]
) -> Any:
    """Run the command ``name``, which takes ``keys`` beside those of a run; what was found, None of ``dry_run``.

    ``parts`` imports the dataclass of its options, what plans it, and what tells what was found.
    """
    parser = CommandParser(name, about, folders=False)
    more = f"those of a run, and: {keys}, range=[LOW,HIGH], out=DIR"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=more)
    parser.add_config_dir_option()
    asked = parser.parse_args(argv)
    from fcorun.system.cluster import require_single_host
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    kind, plan, tell = parts()
    with use_config_dir(asked.config_dir):
        warn_overridden()
        options, overrides, out = split_options(kind, asked.overrides)
        config = compose(overrides)
        require_single_host(f"fcorun {name}", config["hosts"])
        show = make_console(config.get("verbose", True) is not False)

        def say(line: str) -> None:
            show.print(escape(line))

        planned = plan(config, options, out)
        for line in planned.messages:
            say(line)
        if config.get("dry_run") is True:
            return say(planned.study.describe_progress())
        found = planned.run(say)
        left = html_report.write_report(found.folder) if config.get("report") is not False else []
        for line in (*tell(found), *left):
            say(line)
    return found


def split_options(kind: type[T], given: Sequence[str]) -> tuple[T, list[str], str | None]:
    """KEY=VALUE as the options of a command, a dataclass, and the overrides of its configuration; and what ``out`` is.

    Raises UserError for an option with no good value.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    names, values, overrides = {*(field.name for field in fields(kind)), "out"}, {}, []  # type: ignore[arg-type]
    for text in given:
        key, equals, _ = text.partition("=")
        if not equals:
            raise UserError(f"'{text}' is not KEY=VALUE")
        if key not in names:
            overrides.append(text)
            continue
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise UserError(f"{text} cannot be read: give one value, or range=[LOW,HIGH]") from error
        if override.is_sweep_override():
            raise UserError(f"{text}: give one value of {key}")
        values[key] = override.value()
        if key == "range" and isinstance(values[key], (int, float)):
            raise UserError(f"{text} must be two numbers, the least and the largest: give range=[LOW,HIGH]")
    out = values.pop("out", None)
    return build(kind, values), overrides, None if out is None else str(out)
