"""fcorun list: what there is to choose from, a line each."""

import re
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fcorun.cli.capabilities import LEGENDS, capabilities
from fcorun.cli.commands.common import CommandParser, make_console
from fcorun.cli.key_docs import GROUPS, read_choice, read_default_choices, source_text
from fcorun.configuration.search_path import find_choices, use_config_dir
from fcorun.errors import UserError, suggest_name
from fcorun.reports.sweep_report import print_full_width

LISTED = (*GROUPS, "experiment")


def run(argv: Sequence[str]) -> int:
    """List the choices of groups (algo, data, reg, ...) in a line each: what it is, what it needs and can do, where it
    comes from; without GROUP, the groups."""
    parser = CommandParser("list", run.__doc__, folders=False)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(LISTED))
    parser.add_config_dir_option()
    asked = parser.parse_args(argv)
    if wrong := next((group for group in asked.groups if group not in LISTED), None):
        raise UserError(f"list has no group '{wrong}': {suggest_name(wrong, LISTED)}")
    with use_config_dir(asked.config_dir):
        for group in asked.groups:
            print_full_width(_table(group), make_console())
        if not asked.groups:
            for group in LISTED:
                make_console().print(escape(f"{group}: {len(find_choices(group))} choices"))
    return 0


def _table(group: str) -> Table:
    out, default = Table(box=None, pad_edge=False, header_style="bold"), read_default_choices().get(group)
    found = {name: read_choice(group, name) for name in find_choices(group)}
    rows = [
        (f"{name} *" if name == default else name, _sentence(each.description), ", ".join(capabilities(group, each)),
         source_text(group, each))
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
