"""fcorun list: the choices of groups, a line each."""

import re
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from fcorun.base.errors import UserError, suggest_name
from fcorun.experiment.configuration.key_docs import GROUPS, read_choice, read_default_choices, source_text
from fcorun.experiment.configuration.search_path import find_choices, use_config_dir
from fcorun.interface.cli.capabilities import LEGENDS, capabilities
from fcorun.interface.cli.commands.common_command import CommandParser, make_console
from fcorun.reports.sweep_report import print_full_width

LISTED = (*GROUPS, "experiment")


def run(argv: Sequence[str]) -> int:
    """List the choices of groups (algo, data, reg, ...) in a line each: description, requirements and capabilities,
    source; without GROUP, the groups."""
    parser = CommandParser("list", run.__doc__, folders=False)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(LISTED))
    parser.add_config_dir_option()
    arguments = parser.parse_args(argv)
    for group in arguments.groups:
        if group not in LISTED:
            raise UserError(f"list has no group '{group}': {suggest_name(group, LISTED)}")
    with use_config_dir(arguments.config_dir):
        for group in arguments.groups:
            print_full_width(_table_of_group(group), make_console())
        if not arguments.groups:
            for group in LISTED:
                make_console().print(escape(f"{group}: {len(find_choices(group))} choices"))
    return 0


def _table_of_group(group: str) -> Table:
    """Return a table of the choices of a group, without columns that are empty."""
    default = read_default_choices().get(group)
    names = find_choices(group)
    rows = []
    for name in names:
        choice = read_choice(group, name)
        label = f"{name} *" if name == default else name
        first_sentence = re.split(r"(?<=[^A-Z])\. (?=[A-Z])", choice.description)[0].removesuffix(".")
        abilities = ", ".join(capabilities(group, choice))
        rows.append((label, first_sentence, abilities, source_text(group, choice)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = [column for column in range(4) if any(row[column] for row in rows)]
    for column in columns:
        table.add_column((group, "description", "requirements and capabilities", "source")[column], no_wrap=True)
    for row in rows:
        table.add_row(*(escape(row[column]) for column in columns))
    legend = ["* the default"] if default in names else []
    if group in LEGENDS:
        legend.append(LEGENDS[group])
    table.caption = "; ".join(legend)
    table.caption_justify = "left"
    return table
