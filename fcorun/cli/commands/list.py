"""fcorun list: what there is to choose from, a line each."""

import re
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fcorun.cli.abilities import LEGENDS, abilities
from fcorun.cli.commands.common import Parser, console
from fcorun.cli.keys import GROUPS, choice, default_choices, source_told
from fcorun.composing.folders import choices, own
from fcorun.errors import UserError, nearest
from fcorun.reports.results import print_whole

LISTED = (*GROUPS, "experiment")


def run(argv: Sequence[str]) -> int:
    """List the choices of groups (algo, data, reg, ...) in a line each: what it is, what it needs and can do, where it
    comes from; without GROUP, the groups."""
    parser = Parser("list", run.__doc__, folders=False)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(LISTED))
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    if wrong := next((group for group in asked.groups if group not in LISTED), None):
        raise UserError(f"list has no group '{wrong}': {nearest(wrong, LISTED)}")
    with own(asked.config_dir):
        for group in asked.groups:
            print_whole(_table(group), console())
        if not asked.groups:
            for group in LISTED:
                console().print(escape(f"{group}: {len(choices(group))} choices"))
    return 0


def _table(group: str) -> Table:
    out, default = Table(box=None, pad_edge=False, header_style="bold"), default_choices().get(group)
    found = {name: choice(group, name) for name in choices(group)}
    rows = [
        (f"{name} *" if name == default else name, _sentence(each.head), ", ".join(abilities(group, each)),
         source_told(group, each))
        for name, each in found.items()
    ]  # fmt: skip
    columns = [at for at in range(4) if any(row[at] for row in rows)]
    for at in columns:
        out.add_column((group, "what it is", "needs and can", "source")[at], no_wrap=True)
    for row in rows:
        out.add_row(*(escape(row[at]) for at in columns))
    legend = ["* where none is given"] if default in found else []
    out.caption, out.caption_justify = "; ".join([*legend, *filter(None, [LEGENDS.get(group)])]), "left"
    return out


def _sentence(text: str) -> str:
    """The first sentence of a text, without its full stop."""
    return re.split(r"(?<=[^A-Z])\. (?=[A-Z])", text)[0].removesuffix(".")
