"""fcorun select: cross-validation of a strength."""

from collections.abc import Sequence

from fcorun.interface.cli.commands.study_command import run_study

_KEYS = (
    "folds=5, outer_folds=5, points=50, by=rows|clients, rule=min|one_se, fold_weights=rows|equal, "
    "metric=loss|accuracy|..., adaptive=ridge, relax=true, "
    "range=[LOW,HIGH], out=DIR"
)


def run(argv: Sequence[str]) -> int:
    """Choose reg.strength, or the radius of a ball, by cross-validation: a path of values runs on each fold as batches
    of one program, and the chosen value runs on all training rows. A number of reg or algo with several values,
    reg.l1_ratio=0.1,0.5,0.9, is chosen together with it; with relax=true, how far the coefficients of the selected
    features are freed from shrinkage (the relaxed lasso). With outer_folds=K, nested cross-validation scores the whole
    procedure on rows that its choice has not seen (nested.csv). The folder outputs/DATA/select-ALGO-HASH gets
    selection.csv, curve.csv, path.csv, selection.png, the record refit/ and report.html. The same command again
    computes nothing."""
    return run_study("select", run.__doc__, _KEYS, argv, _import_kind)


def _import_kind():
    from fcorun.studies.selection.select import plan_selection
    from fcorun.studies.selection.selection_result import SelectOptions

    return SelectOptions, lambda config, _, options, out: plan_selection(config, options, out)
