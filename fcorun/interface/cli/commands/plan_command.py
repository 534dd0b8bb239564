"""fcorun plan: the plan of a study whose rows stay at several sites."""

from collections.abc import Sequence
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.system.files import write_atomically
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import warn_overridden
from fcorun.interface.cli.commands.common_command import CommandParser, check_output_file
from fcorun.interface.cli.commands.study_command import split_options
from fcorun.interface.cli.terminal import Terminal

_SELECT = "select"  # the first word of a plan of a selection
_INFER_KEYS = "level=0.95, cluster=auto|none|group, errors=robust|model"


def run(argv: Sequence[str]) -> int:
    """Write the plan of an experiment on data=sites: what is computed at each site, and what leaves it. The owner of
    each site reads the plan and accepts its digest; nothing is computed at a site before. After the word select, the
    plan is the choice of a strength by cross-validation, with the keys of fcorun select."""
    parser = CommandParser("plan", run.__doc__, folders=False)
    parser.add_argument(
        "overrides", nargs="+", metavar="[select] KEY=VALUE", help="those of a run; data=sites data.target=..."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file of the plan (.yaml)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--secure", action="store_true", help="mask sums: the server sees them over all sites, at least three"
    )
    parser.add_argument(
        "--bound", action="append", default=[], metavar="NAME=NUMBER", help="the bound of a masked message: round=1e6"
    )
    parser.add_argument(
        "--infer", nargs="*", metavar="KEY=VALUE", help=f"intervals of the coefficients after the run: {_INFER_KEYS}"
    )
    arguments = parser.parse_args(argv)
    check_output_file(arguments.out, [".yaml", ".yml"], arguments.force)
    options = None
    metric = None
    overrides = arguments.overrides
    selects = overrides[0] == _SELECT
    warn_overridden()
    if selects:
        from fcorun.studies.selection.selection_result import SelectOptions

        options, overrides, out = split_options(SelectOptions, overrides[1:])
        if out is not None:
            raise UserError("out=DIR is where a study leaves its files: give it to fcorun site run, and here "
                            "--out FILE")  # fmt: skip
    config = compose(overrides)
    if selects:
        metric = config.get("metric")
        config = {**config, "metric": None}
    from fcorun.experiment.prepare import prepare
    from fcorun.results.models.inference_problem import InferenceOptions
    from fcorun.sites.plan.plan import Plan
    from fcorun.sites.plan.secure_sums import read_bounds

    infer = None
    if arguments.infer is not None:
        infer, rest, out = split_options(InferenceOptions, arguments.infer)
        if rest or out is not None:
            raise UserError(f"--infer {(rest or [f'out={out}'])[0]}: its options are {_INFER_KEYS}; give the keys of "
                            "the run before --infer")  # fmt: skip
    bounds = read_bounds(arguments.bound)
    if bounds and not arguments.secure:
        raise UserError("--bound is for secure sums: give --secure, too")
    plan = Plan.from_experiment(prepare(config), bounds if arguments.secure else None, options, metric, infer)
    write_atomically(arguments.out, plan.to_text(arguments.out.name))
    console = Terminal()
    console.print_lines(plan.describe())
    console.print(f"\n{arguments.out}: send it to the owners of the sites, who check and accept it:")
    console.print(f"  fcorun site check {arguments.out} data.path=FILE")
    return 0
