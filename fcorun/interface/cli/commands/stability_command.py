"""fcorun stability: stability selection of features."""

from collections.abc import Sequence

from fcorun.interface.cli.commands.study_command import run_study

_KEYS = (
    "subsamples=100, points=20, by=rows|clients, threshold=0.75, max_errors=1, assumption=none|unimodal|r_concave, "
    "refit=false, range=[LOW,HIGH], out=DIR"
)


def run(argv: Sequence[str]) -> int:
    """Select features by stability: a path of strengths, or radii, runs on many halves of the rows as batches of one
    program, and features that at least the share threshold of the halves selects are stable. Print a bound on the
    expected number of false selections, and the similarity of the supports that clients select from their own rows.
    The folder outputs/DATA/stability-ALGO-HASH gets stability.csv, stability.json, clients.csv, stability.png,
    report.html, for images brain.png and maps of voxels, and, with refit=true, the record refit/ of the stable columns
    without a penalty.
    The same command again computes nothing."""
    return run_study("stability", run.__doc__, _KEYS, argv, _import_kind)


def _import_kind():
    from fcorun.studies.selection.select_stable import plan_stability
    from fcorun.studies.selection.stability import StabilityOptions

    return StabilityOptions, lambda config, _, options, out: plan_stability(config, options, out)
