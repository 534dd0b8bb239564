"""Overrides, KEY=VALUE, before Hydra composes them."""

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from fcorun.config import SECTIONS
from fcorun.configuration.search_path import find_choices
from fcorun.errors import UserError, suggest_name

_NOT_READ_AS_TEXT = re.compile(r"[+-]?[\d_.]+(e[+-]?\d+)?|null|true|false|nan|[+-]?inf", re.IGNORECASE)
_GROUP_OVERRIDE = re.compile(rf"\+{{0,2}}({'|'.join((*SECTIONS, 'experiment'))})=(.*)", re.DOTALL)


def override_key(override: str) -> str:
    """Return the key of an override, without the signs before it."""
    return override.partition("=")[0].lstrip("+")


def check_overrides(overrides: Any) -> None:
    """Raise UserError for overrides that are no list of texts."""
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise UserError(f"overrides is {overrides!r}: give a list of texts KEY=VALUE")
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"overrides has {override!r}: give texts KEY=VALUE")


def translate_folder(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with Hydra's key of the folder in place of ``out=DIR``.

    Raises UserError for two folders, and for none.
    """
    given = [text for text in arguments if override_key(text) == "out" and "=" in text]
    if not given:
        return [*arguments]
    is_sweep = bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & {*arguments})
    key = "hydra.sweep.dir" if is_sweep else "hydra.run.dir"
    others = [text for text in arguments if text not in given]
    if len(given) > 1 or any(override_key(text) == key for text in others):
        raise UserError(f"the folder is given twice, as {given[0]} and again: give one out=DIR")
    folder = given[0].partition("=")[2]
    if not folder:
        raise UserError("out= names no folder: give out=DIR")
    if _NOT_READ_AS_TEXT.fullmatch(folder):
        folder = f"'{folder}'"  # Hydra would read 2026_05 as 202605
    return [*others, f"{key}={folder}"]


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    r"""Return the arguments of the command line in the form that Hydra takes.

    -m is moved to the front, and ``+experiment=NAME`` becomes ``experiment=NAME``. Two kinds of values are put into
    quotes: an IPv6 address, which Hydra would read as a list, and a network path of Windows (``\\server\share``), of
    whose two leading backslashes Hydra would drop one.

    Raises UserError for a value of a group that is no name, for a strength that is given twice, and for Hydra's option
    that runs the content of a pickle.
    """
    given_keys = {override_key(text) for text in arguments if not text.endswith("=null")}
    if {"reg.strength", "reg.relative"} <= given_keys:
        raise UserError("reg.relative sets the strength: give reg.relative or reg.strength, not both")
    for argument in arguments:
        if argument.startswith("--experimental-rerun"):
            raise UserError("--experimental-rerun reads a pickle, which may hold any program: give the keys again")
        if re.fullmatch(r"\+{0,2}data\.path=\[.*\]", argument, re.DOTALL):
            raise UserError(f"{argument}: data.path is one file: join the tables into one, with a column that names "
                            "each row's client (data.client); rows that stay apart need fcorun plan")  # fmt: skip
        if match := _GROUP_OVERRIDE.fullmatch(argument):
            _check_group(match[1], match[2], argument)
    normalized = []
    for argument in sorted(arguments, key=lambda argument: argument not in ("-m", "--multirun")):
        argument = re.sub(r"^(hosts\.address)=(\[.*\]:\d*)$", r'\1="\2"', argument)
        argument = re.sub(r"^([\w.+]+)=(\\\\[^\"',]*[^\"',\\])$", r'\1="\2"', argument)
        normalized.append(re.sub(r"^\+{1,2}(?=experiment=)", "", argument))
    return normalized


def _check_group(group: str, text: str, argument: str) -> None:
    """Raise UserError if an override of a group has a value that is no name of a choice."""
    try:
        override = OverridesParser.create().parse_override(argument)
        values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    except HydraException:  # composing reports the error; a pattern, glob(...), matches names only
        return
    for value in values:
        if isinstance(value, str) or (value is None and group == "experiment"):
            continue
        advice = ""
        if isinstance(value, list):
            advice = f"; several are a sweep, fcorun -m {group}={text.strip('[]')}"
        elif isinstance(value, (int, float)):
            advice = f"; numbers go to its keys, which fcorun help {group} lists"
        choices = find_choices(group)
        suggestion = suggest_name("none" if value is None and "none" in choices else "", choices)
        raise UserError(f"{group}={text} must be the name of one choice: {suggestion}{advice}")


def split_overrides(job: str) -> list[str]:
    """Return the overrides of a job that is given as one text: split at spaces, except within quotes."""
    return re.findall(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""", job)


def quote_for_shell(override: str) -> str:
    """Return an override with the quotes that its text needs on a shell's command line."""
    key, _, value = override.partition("=")
    if set("'\"{}\\") & set(value):  # the value needs more than quotes
        return f"'{key}=\"TEXT\"'"
    quoted_items = ",".join(f'"{item.strip()}"' for item in value.strip("[]").split(","))
    return f"'{key}=[{quoted_items}]'" if value.startswith("[") else f"'{key}={quoted_items}'"
