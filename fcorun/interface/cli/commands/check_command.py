"""fcorun check: tests a user's own plug-ins by the properties that those of fcorun have."""

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape

from fcorun.experiment.configuration.search_path import use_config_dir, warn_overridden
from fcorun.interface.cli.commands.common_command import CommandParser, make_console


def run(argv: Sequence[str]) -> int:
    """Check plug-ins of your own: an algorithm (algo=NAME), a regularizer (reg=NAME), a mirror map (mirror=NAME), an
    objective (objective=NAME), a data set (data=NAME), a topology (topology=NAME), a channel (uplink=NAME or
    downlink=NAME), a clock (clock=NAME), a task (task=NAME) or a score (score=NAME), by the properties that those of
    fcorun have. The command prints a line for each check: passed; failed, with what was expected and what came; or not
    applicable, with the reason."""
    parser = CommandParser("check", run.__doc__, folders=False)
    help_text = "what to check, as algo=NAME, and values of its keys, as algo.client_lr=0.01"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=help_text)
    parser.add_config_dir_option()
    arguments = parser.parse_args(argv)
    from fcorun.base.system.machine import set_up_jax

    set_up_jax(devices=2)
    from fcorun.interface.checks.plugins import check

    out = make_console()
    counts = Counter()
    printed_failures = set()
    with use_config_dir(arguments.config_dir):
        warn_overridden()
        for title, outcomes in check(arguments.overrides):
            out.print(escape(title))
            for outcome in outcomes:
                message = "see above" if outcome.message in printed_failures else outcome.message
                text = f"{outcome.name}: {message}" if message else outcome.name
                out.print(escape(f"  {outcome.status:14}  {text}"))
                counts[outcome.status] += 1
                if outcome.status == "failed":
                    printed_failures.add(outcome.message)
    out.print(", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "not applicable")))
    return 1 if counts["failed"] else 0
