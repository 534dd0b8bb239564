"""fcorun check: tests a user's own plug-ins by the properties that those of fcorun have."""

from collections import Counter
from collections.abc import Sequence

from fcorun.experiment.configuration.search_path import warn_overridden
from fcorun.interface.cli.commands.common_command import CommandParser
from fcorun.interface.cli.terminal import Terminal


def run(argv: Sequence[str]) -> int:
    """Check plug-ins of your own: an algorithm (algo=NAME), a regularizer (reg=NAME), a mirror map (mirror=NAME), an
    objective (objective=NAME), a data set (data=NAME), a topology (topology=NAME), a channel (uplink=NAME or
    downlink=NAME), an aggregation rule (aggregate=NAME), faults of clients (faults=NAME), privacy
    (privacy=NAME), a clock (clock=NAME), a task (task=NAME) or a score (score=NAME), by the properties that those of
    fcorun have. The command prints a line for each check: passed; failed, with what was expected and what came; or not
    applicable, with the reason."""
    parser = CommandParser("check", run.__doc__, folders=False)
    help_text = "what to check, as algo=NAME, and values of its keys, as algo.client_lr=0.01"
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help=help_text)
    arguments = parser.parse_args(argv)
    import jax

    from fcorun.base.system.machine import set_up_jax

    set_up_jax(devices=2)
    jax.config.update("jax_disable_most_optimizations", True)  # these programs take longer to compile than they run
    from fcorun.interface.checks.plugins import check

    out = Terminal()
    counts = Counter()
    printed_failures = set()
    warn_overridden()
    for title, results in check(arguments.overrides):
        out.print(title)
        for result in results:
            message = "see above" if result.message in printed_failures else result.message
            text = f"{result.name}: {message}" if message else result.name
            out.print(f"  {result.status:14}  {text}")
            counts[result.status] += 1
            if result.status == "failed":
                printed_failures.add(result.message)
    out.print(", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "not applicable")))
    return 1 if counts["failed"] else 0
