"""fcorun check: the laws that a plug-in is to obey, tried on it."""

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape

from fcorun.cli.commands.common import CommandParser, make_console
from fcorun.configuration.search_path import use_config_dir, warn_overridden


def run(argv: Sequence[str]) -> int:
    """Check plug-ins of your own: an algorithm (algo=NAME), a regularizer (reg=NAME), a mirror map (mirror=NAME), an
    objective (objective=NAME) or a data set (data=NAME), by the laws that fcorun's own obey. It prints a line a check:
    passed; failed, with what was expected and what came; or not applicable, with the reason."""
    parser = CommandParser("check", run.__doc__, folders=False)
    about = "what to check, as algo=NAME, and values of its keys, as algo.client_lr=0.01"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=about)
    parser.add_config_dir_option()
    asked = parser.parse_args(argv)
    from fcorun.system.machine import set_up_jax

    set_up_jax(devices=2)
    from fcorun.checks.plugins import check

    out, ends, said = make_console(), Counter(), set()
    with use_config_dir(asked.config_dir):
        warn_overridden()
        for title, outcomes in check(asked.overrides):
            out.print(escape(title))
            for outcome in outcomes:
                sentence = "as said above" if outcome.message in said else outcome.message
                told = f"{outcome.name}: {sentence}" if sentence else outcome.name
                out.print(escape(f"  {outcome.status:14}  {told}"))
                ends[outcome.status] += 1
                said |= {outcome.message} if outcome.status == "failed" else set()
    out.print(", ".join(f"{ends[end]} {end}" for end in ("passed", "failed", "not applicable")))
    return 1 if ends["failed"] else 0
