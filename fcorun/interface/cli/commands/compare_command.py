"""fcorun compare: which model for which client."""

from collections.abc import Sequence

from fcorun.experiment.configuration.compose import compose_shared
from fcorun.interface.cli.commands.study_command import run_study

_KEYS = (
    "folds=5, outer_folds=5, points=30, rule=min|one_se, range=[LOW,HIGH], methods=[ALGO,...], samples=1000, "
    "level=0.95, out=DIR"
)


def run(argv: Sequence[str]) -> int:
    """Compare models for each client: the shared model, the same recalibrated by an intercept and a slope of the
    client, the same with features standardized by client, own models of personalised methods, each client alone,
    each client's mean, and the shared model of the other clients. All are chosen on the same inner folds and judged
    on the same outer folds, by client, with intervals of the differences to the shared model. No algo is needed.
    The folder outputs/DATA/compare-HASH gets comparison.csv, comparison.json, comparison.png, and a folder with
    the fits of each candidate. The same command again computes no fit."""
    return run_study("compare", run.__doc__, _KEYS, argv, _import_kind, has_page=False)


def _import_kind():
    from fcorun.studies.selection.comparison import CompareOptions, plan_comparison

    return CompareOptions, lambda _, overrides, options, out: plan_comparison(compose_shared, overrides, options, out)
