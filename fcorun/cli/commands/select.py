"""fcorun select: the choice of a strength by cross-validation."""

from collections.abc import Sequence

from rich.markup import escape

from fcorun.cli import page
from fcorun.cli.commands.common import Parser, console, divided
from fcorun.composing.compose import compose
from fcorun.composing.folders import own


def run(argv: Sequence[str]) -> int:
    """Choose reg.strength, or the radius of a ball, by cross-validation: a path of values runs on each fold as batches
    of one program, and what is chosen on all training rows. It leaves selection.csv, curve.csv, path.csv,
    selection.png and .pdf, the record refit/, and where plotly is installed report.html, in
    outputs/DATA/select-ALGO-HASH. What is there is not computed again."""
    parser = Parser("select", run.__doc__, folders=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE",
                        help="those of a run, and: folds=5, points=50, by=rows|clients, rule=min|one_se, "
                        "metric=loss|accuracy|..., range=[LOW,HIGH], out=DIR")  # fmt: skip
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    from fcorun.selection.report import tell_selection
    from fcorun.selection.select import plan
    from fcorun.selection.selected import Options
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    with own(asked.config_dir):
        options, overrides, out = divided(Options, asked.overrides)
        config = compose(overrides)
        show = console(config.get("verbose", True) is not False)
        planned = plan(config, options, out)
        for line in planned.said:
            show.print(escape(line))
        if config.get("dry_run") is True:
            show.print(escape(planned.study.look()))
            return 0
        found = planned.run(lambda line: show.print(escape(line)))
        left = page.leave(found.folder) if config.get("report") is not False else []
        for line in (*tell_selection(found), *left):
            show.print(escape(line))
    return 0 if found.record and found.record.status.get("status") == "done" else 1
