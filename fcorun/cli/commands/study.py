"""What fcorun select and fcorun stability have in common: from their arguments to what was found."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from rich.markup import escape

from fcorun.cli import page
from fcorun.cli.commands.common import Parser, console
from fcorun.composing.compose import compose
from fcorun.composing.folders import own, say_replaced
from fcorun.config import build
from fcorun.errors import UserError

T = TypeVar("T")


def study(
    name: str, about: str | None, keys: str, argv: Sequence[str], parts: Callable[[], tuple[type, Callable, Callable]]
) -> Any:
    """Run the command ``name``, which takes ``keys`` beside those of a run; what was found, None of ``dry_run``.

    ``parts`` imports the dataclass of its options, what plans it, and what tells what was found.
    """
    parser = Parser(name, about, folders=False)
    more = f"those of a run, and: {keys}, range=[LOW,HIGH], out=DIR"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=more)
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    from fcorun.system.cluster import refuse_several
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    kind, plan, tell = parts()
    with own(asked.config_dir):
        say_replaced()
        options, overrides, out = divided(kind, asked.overrides)
        config = compose(overrides)
        refuse_several(f"fcorun {name}", config["hosts"])
        show = console(config.get("verbose", True) is not False)

        def say(line: str) -> None:
            show.print(escape(line))

        planned = plan(config, options, out)
        for line in planned.said:
            say(line)
        if config.get("dry_run") is True:
            return say(planned.study.look())
        found = planned.run(say)
        left = page.leave(found.folder) if config.get("report") is not False else []
        for line in (*tell(found), *left):
            say(line)
    return found


def divided(kind: type[T], given: Sequence[str]) -> tuple[T, list[str], str | None]:
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
