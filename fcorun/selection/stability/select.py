"""fcorun stability: subsamples, a path on each, and what is chosen again and again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.base import FederatedData, stream
from fcorun.datasets.part import Part, part
from fcorun.errors import UserError
from fcorun.experiment.build import problem_of
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.fit import convex
from fcorun.objectives.base import linear
from fcorun.selection.checks import begun, check_parts, check_together, standardized_by_itself, unjudged
from fcorun.selection.fitting import ENDS, Fitted
from fcorun.selection.folds import filled, halves
from fcorun.selection.path import RegularizationPath, path_of
from fcorun.selection.stability import files
from fcorun.selection.stability.alone import supports
from fcorun.selection.stability.asked import Options, Stable
from fcorun.selection.stability.stable import Stability, jaccard, stability
from fcorun.selection.study import Study, Tell, cost, opening

RATIO = 0.05  # of the least strength to the largest: halves that choose many features say little


@dataclass(frozen=True)
class Plan:
    """A stability selection that is to be made; ``said`` is what a user should know before it begins."""

    options: Options
    study: Study
    path: RegularizationPath
    said: list[str]

    def run(self, tell: Tell = lambda line: None) -> Stable:
        """Run what is not there, and see what is stable. Raises UserError."""
        study, began = self.study, time.perf_counter()
        experiment, data = study.experiment, study.data
        with study.claimed():
            fitted = study.fits(partial(_slim, data, experiment.settings.cutoff), tell)
            path, said, chosen = _whole(self.path, fitted, experiment)
            found = stability(chosen, self.options.threshold, self.options.errors, _free(experiment, data))
            alone, more = _clients(experiment, data, path, found)
            said += more + ends(path, found, self.options.errors) + unjudged(experiment)
            done = Stable(study=study, options=self.options, path=path, found=found, clients=alone, cost=cost(fitted),
                          remarks=said)  # fmt: skip
            files.write(done, time.perf_counter() - began)
        return done


def select_stable(
    config: Mapping[str, Any],
    options: Options = Options(),  # noqa: B008
    out: str | Path | None = None,
    *,
    tell: Tell = lambda line: None,
) -> Stable:
    """Run a path of strengths on complementary halves of the training rows, and see which features are chosen again.

    Fits that lie in the folder, by default outputs/DATA/stability-ALGO-HASH, are not computed again. Raises UserError
    for whatever a user can mend; what is wrong with the options or the data before anything is written.
    """
    return plan(config, options, out).run(tell)


def plan(config: Mapping[str, Any], options: Options, out: str | Path | None = None) -> Plan:
    """What ``select_stable`` would do. Raises UserError, and writes nothing."""
    experiment, data, fixed = begun(config, "stability")
    names = experiment.names
    if not linear(type(experiment.objective)):
        raise UserError(f"objective={names['objective']} has no coefficient for each feature, which could be chosen or "
                        "not: take least_squares, logistic, or another linear model")  # fmt: skip
    path = path_of(experiment, data, options.points, options.range, RATIO)
    rng = stream(experiment.settings.seed, "stability", "halves")
    masks = list(halves(data, options.subsamples // 2, options.by, rng))
    check_parts(experiment, data, masks, options.by)
    check_together(experiment, data, "stability looks at one of all: choose another algo, such as feddualavg")
    none, anew = np.zeros(len(data.y), bool), standardized_by_itself(experiment)
    parts: dict[str, Callable[[], Part]] = {
        f"half{s + 1}": partial(part, data, mask, none, anew) for s, mask in enumerate(masks)
    }
    width = max(int(np.add.reduceat(mask, data.offsets[:-1], dtype=np.int64).max()) for mask in masks)
    asked = {name: value for name, value in asdict(options).items() if name not in ("threshold", "errors")}
    study = Study.of("stability", experiment, data, fixed=fixed, asked=[experiment.settings.cutoff, asked],
                     rows=masks, out=out, number=path.number, values=path.values, parts=parts,
                     width=width, mark=files.MARK)  # fmt: skip
    said = opening(study, path, f"{options.subsamples} halves", options.by, "take no part")
    if data.fold is not None:
        said.append("data.fold says which rows folds of fcorun select hold out, and nothing of halves")
    if (own := len({mask.tobytes() for mask in masks})) < len(masks) and options.by == "clients":
        said.append(f"{own} of these halves are distinct: each pair leaves one of {len(data.sizes)} clients out")
    return Plan(options, study, path, [*said, *filled(data), *data.remarks])


def _free(experiment: Experiment, data: FederatedData) -> np.ndarray:
    """The features that reg.factors leaves without penalty, (d,)."""
    factors = problem_of(experiment, data).regularizer.factors or {}
    return np.array([factors.get(str(j)) == 0 for j in range(data.x.shape[1])])


def _slim(data: FederatedData, cutoff: float, _: str, fitted: Fitted) -> Fitted:
    """What is kept of a fit: which features it has, of any class, (P, d)."""
    weights = np.abs(fitted.solution["weights"]).reshape(len(fitted.end), data.x.shape[1], -1)
    return replace(fitted, metrics={}, solution={"chosen": (weights > cutoff).any(axis=2)})


def _whole(
    path: RegularizationPath, fitted: Mapping[str, Fitted], experiment: Experiment
) -> tuple[RegularizationPath, list[str], np.ndarray]:
    """The path without values at which runs diverged, what is to be said of the runs, what they chose, (S, P, d)."""
    ends = np.stack([each.end for each in fitted.values()])
    chosen = np.stack([each.solution["chosen"] for each in fitted.values()])
    lost, said = (ends == ENDS.index("diverged")).any(axis=0), []
    if lost.all():
        raise UserError("no strength is without a half on which the run diverged: a smaller algo.client_lr or "
                        "algo.server_lr may help")  # fmt: skip
    if lost.any():
        said.append(f"diverged: runs at {lost.sum()} of {len(lost)} values of {path.number}, which are left out; "
                    "smaller rates of algo may help")  # fmt: skip
    cures = {"falling": f"supports are those after {experiment.settings.rounds} rounds, not of the optimum: more "
             "rounds or larger rates may help", "not certified": "a larger algo.max_iterations may help"}  # fmt: skip
    for end, cure in cures.items():
        if count := int((ends == ENDS.index(end)).sum()):
            said.append(f"{end}: {count} of {ends.size} runs: {cure}")
    return replace(path, values=path.values[~lost]), said, chosen[:, ~lost]


def _clients(
    experiment: Experiment, data: FederatedData, path: RegularizationPath, found: Stability
) -> tuple[np.ndarray | None, list[str]]:
    """How alike the supports of clients' own solutions are at the end of the region, and what is to be said of it."""
    if len(data.sizes) < 2:
        return None, []
    if not convex(experiment.objective, experiment.reg):
        return None, ["clients' own solutions are not known: the problem is not convex, or does not say that it is"]
    chosen, sure = supports(experiment, data, path.number, path.values[found.region - 1])
    chosen = chosen[:, ~found.free]
    alike = jaccard(chosen)
    alike[~sure], alike[:, ~sure] = np.nan, np.nan
    empty = int((sure & ~chosen.any(axis=1)).sum())
    said = [f"{(~sure).sum()} of {len(sure)} clients have no solution of their own: rows of one class, or none that "
            "the solver certified"] if not sure.all() else []  # fmt: skip
    said += [f"{empty} of {len(sure)} clients choose no feature by themselves"] if empty else []
    return alike, said


def ends(path: RegularizationPath, found: Stability, errors: float) -> list[str]:
    """What is to be said of where the region ends."""
    if found.bound[0] > errors:
        return [f"already the first value of the path chooses {found.q[0]:.3g} features on a half, too many for "
                f"errors={errors:g}: begin sooner by range, allow more errors, or take a psi that makes coefficients 0"
                ]  # fmt: skip
    if found.region == len(path.values):
        low, high = min(path.values), max(path.values)
        low, high = (low / 10, high) if path.number == "strength" else (low, high * 10)
        return [f"the bound would allow a longer path: range=[{low:.3g},{high:.3g}] follows it further"]
    if found.region == 1:
        return ["the bound allows the first value of the path only: more points, a larger threshold or more errors "
                "allow more"]  # fmt: skip
    if found.region < len(path.values) / 2:
        return [f"errors={errors:g} allows {found.region} of {len(path.values)} values of the path: a larger errors= "
                "loosens the bound and follows the path further, with more false selections expected"]  # fmt: skip
    return []
