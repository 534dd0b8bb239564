"""fcorun permute: scores out of fold against those of permuted targets."""

from collections.abc import Sequence

from fcorun.interface.cli.commands.study_command import run_study

_KEYS = "n=1000, folds=5, by=rows|clients, points=10, range=[LOW,HIGH], out=DIR"
_GIVEN = ("reg.strength=", "reg.radius=")


def run(argv: Sequence[str]) -> int:
    """Test whether features tell of the target: permute the targets within each client n times (a group of data.group
    exchanges its targets with groups of its size), cross-validate each time in the same folds (where these have the
    classes evenly, a row's target takes its fold along), and compare accuracy and AUC, or R2, and the number of
    features with a coefficient. p is (1 + permutations at least as good) / (1 + n). The strength, or radius, is fixed
    if the command gives it; else each permutation chooses its own on a path. The folder
    outputs/DATA/permute-ALGO-HASH gets permutations.csv, permutation.json, permutation.png and report.html.
    The same command again computes nothing, and a larger n only what is missing."""
    return run_study("permute", run.__doc__, _KEYS, argv, _import_kind)


def _import_kind():
    from fcorun.studies.selection.permutation import PermutationOptions
    from fcorun.studies.selection.permute import plan_permutations

    def plan(config, overrides, options, out):
        is_given = any(text.startswith(_GIVEN) for text in overrides)
        return plan_permutations(config, options, out, keeps_strength=is_given)

    return PermutationOptions, plan
