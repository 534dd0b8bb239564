"""What is given as KEY=VALUE, before Hydra composes it."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fcorun.configuration.search_path import find_choices
from fcorun.errors import UserError, suggest_name
from fcorun.sections import SECTIONS

_GROUP = re.compile(rf"\+{{0,2}}({'|'.join((*SECTIONS, 'experiment'))})=(.*)", re.DOTALL)


def override_key(override: str) -> str:
    """The key of an override, without signs."""
    return override.partition("=")[0].lstrip("+")


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    """The arguments as Hydra takes them: -m, wherever it stands, in front; ``+experiment=NAME`` as ``experiment=NAME``;
    an address of IPv6, which begins as a list does, in quotes, and so a path of a server of Windows, of whose two
    backslashes Hydra would take one.

    Raises UserError for a group that is given anything but names, for a strength that is given twice, and for Hydra's
    way to run what a pickle holds.
    """
    if {"reg.strength", "reg.relative"} <= {override_key(text) for text in arguments if not text.endswith("=null")}:
        raise UserError("reg.relative says what the strength is: give it or reg.strength, not both")
    for argument in arguments:
        if argument.startswith("--experimental-rerun"):
            raise UserError("--experimental-rerun reads a pickle, which may hold any program: give the keys anew")
        if found := _GROUP.fullmatch(argument):
            _check_group(found[1], found[2], argument)
    first = sorted(arguments, key=lambda argument: argument not in ("-m", "--multirun"))
    first = [re.sub(r"^(hosts\.address)=(\[.*\]:\d*)$", r'\1="\2"', argument) for argument in first]
    first = [re.sub(r"^([\w.+]+)=(\\\\[^\"',]*[^\"',\\])$", r'\1="\2"', argument) for argument in first]
    return [re.sub(r"^\+{1,2}(?=experiment=)", "", argument) for argument in first]


def _check_group(group: str, text: str, argument: str) -> None:
    try:
        override = OverridesParser.create().parse_override(argument)
        values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    except HydraException:  # is told by who composes; or is a pattern, glob(...), which finds names only
        return
    for value in values:
        if isinstance(value, str) or (value is None and group == "experiment"):
            continue
        more = ""
        if isinstance(value, list):
            more = f"; several are a sweep, fcorun -m {group}={text.strip('[]')}"
        elif isinstance(value, (int, float)):
            more = f"; numbers go to its keys, which fcorun help {group} lists"
        valid = suggest_name("none" if value is None else "", find_choices(group))
        raise UserError(f"{group}={text} must be the name of one choice: {valid}{more}")


def split_overrides(job: str) -> list[str]:
    """The overrides of a job that is one text: split at spaces, but for those within quotes."""
    return re.findall(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""", job)


def quote_for_shell(override: str) -> str:
    """How the shell takes an override whose text needs quotes."""
    key, _, value = override.partition("=")
    items = ",".join(f'"{item.strip()}"' for item in value.strip("[]").split(","))
    if set("'\"{}\\") & set(value):  # not only that is wrong
        return f"'{key}=\"TEXT\"'"
    return f"'{key}=[{items}]'" if value.startswith("[") else f"'{key}={items}'"
