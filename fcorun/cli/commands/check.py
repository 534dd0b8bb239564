"""fcorun check: the laws that a plug-in is to obey, tried on it."""

from collections import Counter
from collections.abc import Sequence

from rich.markup import escape

from fcorun.cli.commands.common import Parser, console
from fcorun.composing.folders import own, say_replaced


def run(argv: Sequence[str]) -> int:
    """Check plug-ins of your own: an algorithm (algo=NAME), a regularizer (reg=NAME), a mirror map (mirror=NAME), an
    objective (objective=NAME) or a data set (data=NAME), by the laws that fcorun's own obey. It prints a line a check:
    passed; failed, with what was expected and what came; or not applicable, with the reason."""
    parser = Parser("check", run.__doc__, folders=False)
    about = "what to check, as algo=NAME, and values of its keys, as algo.client_lr=0.01"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=about)
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    from fcorun.system.machine import set_up_jax

    set_up_jax(devices=2)
    from fcorun.checks.plugins import check

    out, ends, said = console(), Counter(), set()
    with own(asked.config_dir):
        say_replaced()
        for title, outcomes in check(asked.overrides):
            out.print(escape(title))
            for outcome in outcomes:
                sentence = "as said above" if outcome.sentence in said else outcome.sentence
                told = f"{outcome.name}: {sentence}" if sentence else outcome.name
                out.print(escape(f"  {outcome.end:14}  {told}"))
                ends[outcome.end] += 1
                said |= {outcome.sentence} if outcome.end == "failed" else set()
    out.print(", ".join(f"{ends[end]} {end}" for end in ("passed", "failed", "not applicable")))
    return 1 if ends["failed"] else 0
