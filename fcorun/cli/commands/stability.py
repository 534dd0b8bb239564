"""fcorun stability: the features that are chosen again and again."""

from collections.abc import Sequence

from rich.markup import escape

from fcorun.cli import page
from fcorun.cli.commands.common import Parser, console, divided
from fcorun.composing.compose import compose
from fcorun.composing.folders import own


def run(argv: Sequence[str]) -> int:
    """Select features by stability: a path of strengths, or radii, runs on many halves of the rows as batches of one
    program, and features that are chosen on most of them are stable, with a bound on how many of them are false as
    expected; also, how alike clients' own solutions are. It leaves stability.csv, clients.csv, stability.png and
    .pdf, and where plotly is installed report.html in outputs/DATA/stability-ALGO-HASH. What is there is not computed
    again."""
    parser = Parser("stability", run.__doc__, folders=False)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE",
                        help="those of a run, and: subsamples=100, points=20, by=rows|clients, threshold=0.75, "
                        "errors=1, range=[LOW,HIGH], out=DIR")  # fmt: skip
    parser.add_config_dir()
    asked = parser.parse_args(argv)
    from fcorun.selection.stability.asked import Options
    from fcorun.selection.stability.files import tell_stable
    from fcorun.selection.stability.select import plan
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
        for line in (*tell_stable(found), *left):
            show.print(escape(line))
    return 0
