"""fcorun stability: subsamples, a path on each, and what is chosen again and again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import RowSubset, take_subset
from fcorun.errors import UserError
from fcorun.experiment.build import build_problem
from fcorun.experiment.compatibility import are_convex
from fcorun.experiment.experiment import Experiment
from fcorun.objectives.base import is_linear_model
from fcorun.selection.checks import (
    check_global_model,
    check_subsets,
    fits_own_scaling,
    prepare_study,
    warn_few_evaluations,
)
from fcorun.selection.fitting import END_STATES, PathFit
from fcorun.selection.folds import draw_halves, warn_filled_gaps
from fcorun.selection.path import RegularizationPath, build_path
from fcorun.selection.stability import files
from fcorun.selection.stability.options import StabilityOptions, StabilityResult
from fcorun.selection.stability.per_client import fit_client_supports
from fcorun.selection.stability.scores import StabilityScores, compute_jaccard, score_features
from fcorun.selection.study import Log, Study, describe_study, sum_costs
from fcorun.system.random_streams import random_stream

MIN_RATIO = 0.05  # of the least strength to the largest: halves that choose many features say little


@dataclass(frozen=True)
class StabilityPlan:
    """A stability selection that is to be made; ``said`` is what a user should know before it begins."""

    options: StabilityOptions
    study: Study
    path: RegularizationPath
    messages: list[str]

    def run(self, log: Log = lambda line: None) -> StabilityResult:
        """Run what is not there, and see what is stable. Raises UserError."""
        study, began = self.study, time.perf_counter()
        experiment, data = study.experiment, study.data
        with study.claim():
            fitted = study.compute_fits(partial(_slim, data, experiment.settings.cutoff), log)
            path, said, chosen = _whole(self.path, fitted, experiment)
            found = score_features(chosen, self.options.threshold, self.options.errors, _free(experiment, data))
            alone, more = _clients(experiment, data, path, found)
            said += more + warn_about_region(path, found, self.options.errors) + warn_few_evaluations(experiment)
            done = StabilityResult(
                study=study,
                options=self.options,
                path=path,
                scores=found,
                client_similarity=alone,
                cost=sum_costs(fitted),
                warnings=said,
            )
            files.write(done, time.perf_counter() - began)
        return done


def select_stable_features(
    config: Mapping[str, Any],
    options: StabilityOptions = StabilityOptions(),  # noqa: B008
    out: str | Path | None = None,
    *,
    log: Log = lambda line: None,
) -> StabilityResult:
    """Run a path of strengths on complementary halves of the training rows, and see which features are chosen again.

    Fits that lie in the folder, by default outputs/DATA/stability-ALGO-HASH, are not computed again. Raises UserError
    for whatever a user can mend; what is wrong with the options or the data before anything is written.
    """
    return plan_stability(config, options, out).run(log)


def plan_stability(
    config: Mapping[str, Any], options: StabilityOptions, out: str | Path | None = None
) -> StabilityPlan:
    """What ``select_stable`` would do. Raises UserError, and writes nothing."""
    experiment, data, fixed = prepare_study(config, "stability")
    names = experiment.names
    if not is_linear_model(type(experiment.objective)):
        raise UserError(f"objective={names['objective']} has no coefficient for each feature, which could be chosen or "
                        "not: take least_squares, logistic, or another linear model")  # fmt: skip
    path = build_path(experiment, data, options.points, options.range, MIN_RATIO)
    rng = random_stream(experiment.settings.seed, "stability", "halves")
    masks = list(draw_halves(data, options.subsamples // 2, options.by, rng))
    check_subsets(experiment, data, masks, options.by)
    check_global_model(experiment, data, "stability looks at one of all: choose another algo, such as feddualavg")
    none, anew = np.zeros(len(data.y), bool), fits_own_scaling(experiment)
    parts: dict[str, Callable[[], RowSubset]] = {
        f"half{s + 1}": partial(take_subset, data, mask, none, anew) for s, mask in enumerate(masks)
    }
    width = max(int(np.add.reduceat(mask, data.offsets[:-1], dtype=np.int64).max()) for mask in masks)
    asked = {name: value for name, value in asdict(options).items() if name not in ("threshold", "errors")}
    study = Study.create(
        "stability",
        experiment,
        data,
        without_strength=fixed,
        dependencies=[experiment.settings.cutoff, asked],
        row_arrays=masks,
        out=out,
        number=path.param_name,
        values=path.values,
        parts=parts,
        width=width,
        mark=files.STUDY_FILE,
    )
    said = describe_study(study, path, f"{options.subsamples} halves", options.by, "take no part")
    if data.fold is not None:
        said.append("data.fold says which rows folds of fcorun select hold out, and nothing of halves")
    if (own := len({mask.tobytes() for mask in masks})) < len(masks) and options.by == "clients":
        said.append(f"{own} of these halves are distinct: each pair leaves one of {len(data.sizes)} clients out")
    return StabilityPlan(options, study, path, [*said, *warn_filled_gaps(data), *data.warnings])


def _free(experiment: Experiment, data: FederatedData) -> np.ndarray:
    """The features that reg.factors leaves without penalty, (d,)."""
    factors = build_problem(experiment, data).regularizer.factors or {}
    return np.array([factors.get(str(j)) == 0 for j in range(data.x.shape[1])])


def _slim(data: FederatedData, cutoff: float, _: str, fitted: PathFit) -> PathFit:
    """What is kept of a fit: which features it has, of any class, (P, d)."""
    weights = np.abs(fitted.solution["weights"]).reshape(len(fitted.end_state), data.x.shape[1], -1)
    return replace(fitted, metrics={}, solution={"chosen": (weights > cutoff).any(axis=2)})


def _whole(
    path: RegularizationPath, fitted: Mapping[str, PathFit], experiment: Experiment
) -> tuple[RegularizationPath, list[str], np.ndarray]:
    """The path without values at which runs diverged, what is to be said of the runs, what they chose, (S, P, d)."""
    ends = np.stack([each.end_state for each in fitted.values()])
    chosen = np.stack([each.solution["chosen"] for each in fitted.values()])
    lost, said = (ends == END_STATES.index("diverged")).any(axis=0), []
    if lost.all():
        raise UserError("no strength is without a half on which the run diverged: a smaller algo.client_lr or "
                        "algo.server_lr may help")  # fmt: skip
    if lost.any():
        said.append(f"diverged: runs at {lost.sum()} of {len(lost)} values of {path.param_name}, which are left out; "
                    "smaller rates of algo may help")  # fmt: skip
    cures = {"falling": f"supports are those after {experiment.settings.rounds} rounds, not of the optimum: more "
             "rounds or larger rates may help", "not certified": "a larger algo.max_iterations may help"}  # fmt: skip
    for end, cure in cures.items():
        if count := int((ends == END_STATES.index(end)).sum()):
            said.append(f"{end}: {count} of {ends.size} runs: {cure}")
    return replace(path, values=path.values[~lost]), said, chosen[:, ~lost]


def _clients(
    experiment: Experiment, data: FederatedData, path: RegularizationPath, found: StabilityScores
) -> tuple[np.ndarray | None, list[str]]:
    """How alike the supports of clients' own solutions are at the end of the region, and what is to be said of it."""
    if len(data.sizes) < 2:
        return None, []
    if not are_convex(experiment.objective, experiment.reg):
        return None, ["clients' own solutions are not known: the problem is not convex, or does not say that it is"]
    chosen, sure = fit_client_supports(experiment, data, path.param_name, path.values[found.region_length - 1])
    chosen = chosen[:, ~found.unpenalised]
    alike = compute_jaccard(chosen)
    alike[~sure], alike[:, ~sure] = np.nan, np.nan
    empty = int((sure & ~chosen.any(axis=1)).sum())
    said = [f"{(~sure).sum()} of {len(sure)} clients have no solution of their own: rows of one class, or none that "
            "the solver certified"] if not sure.all() else []  # fmt: skip
    said += [f"{empty} of {len(sure)} clients choose no feature by themselves"] if empty else []
    return alike, said


def warn_about_region(path: RegularizationPath, found: StabilityScores, errors: float) -> list[str]:
    """What is to be said of where the region ends."""
    if found.bound[0] > errors:
        return [f"already the first value of the path chooses {found.q[0]:.3g} features on a half, too many for "
                f"errors={errors:g}: begin sooner by range, allow more errors, or take a psi that makes coefficients 0"
                ]  # fmt: skip
    if found.region_length == len(path.values):
        low, high = min(path.values), max(path.values)
        low, high = (low / 10, high) if path.param_name == "strength" else (low, high * 10)
        return [f"the bound would allow a longer path: range=[{low:.3g},{high:.3g}] follows it further"]
    if found.region_length == 1:
        return ["the bound allows the first value of the path only: more points, a larger threshold or more errors "
                "allow more"]  # fmt: skip
    if found.region_length < len(path.values) / 2:
        return [
            f"errors={errors:g} allows {found.region_length} of {len(path.values)} values of the path: a larger "
            f"errors= "
            "loosens the bound and follows the path further, with more false selections expected"
        ]
    return []
