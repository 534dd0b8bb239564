"""fcorun compare: which model for which client."""

from collections.abc import Sequence

from rich.markup import escape

from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import use_config_dir, warn_overridden
from fcorun.interface.cli.commands.common_command import CommandParser, make_console
from fcorun.interface.cli.commands.study_command import split_options

_KEYS = (
    "folds=5, outer_folds=5, points=30, rule=min|one_se, range=[LOW,HIGH], methods=[ALGO,...], samples=1000, "
    "level=0.95, out=DIR"
)


def run(argv: Sequence[str]) -> int:
    """Compare models for each client: the shared model, the same with features standardized by client, own models of
    personalised methods, each client alone, each client's mean, and the shared model of the other clients. All are
    chosen on the same inner folds and judged on the same outer folds, by client, with intervals of the differences to
    the shared model. No algo is needed. The folder outputs/DATA/compare-HASH gets comparison.csv, comparison.json,
    comparison.png and .pdf, and a folder with the fits of each candidate. The same command again computes no fit."""
    parser = CommandParser("compare", run.__doc__, folders=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"those of a run, and: {_KEYS}")
    parser.add_config_dir_option()
    arguments = parser.parse_args(argv)
    from fcorun.base.system.machine import require_single_host, set_up_jax

    set_up_jax()
    from fcorun.studies.selection import compare as files
    from fcorun.studies.selection.compare import plan_comparison
    from fcorun.studies.selection.comparison import CompareOptions, describe_comparison

    with use_config_dir(arguments.config_dir):
        warn_overridden()
        options, overrides, out = split_options(CompareOptions, arguments.overrides)
        config = compose(overrides)
        require_single_host("fcorun compare", config["hosts"])
        console = make_console(config.get("verbose", True) is not False)

        def show(line: str) -> None:
            console.print(escape(line))

        plan = plan_comparison(compose, overrides, options, out)
        for line in plan.messages:
            show(line)
        if config.get("dry_run") is True:
            for line in plan.describe_progress():
                show(line)
            return 0
        comparison = plan.run(show)
        files.write(comparison)
        for line in describe_comparison(comparison):
            show(line)
    return 0
