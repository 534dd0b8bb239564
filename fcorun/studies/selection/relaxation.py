"""The relaxed lasso in a selection: the share of the lasso is chosen together with the strength."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Float

from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.models.relaxed import (
    PENALIZED_METRICS,
    NoRefit,
    UnpenalizedRefits,
    keep_relaxed_metrics,
    relax_solution,
)
from fcorun.studies.selection.path_fit import END_STATES, PathFit
from fcorun.studies.selection.second_number import SecondNumber

DEFAULT_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # as in glmnet's cv.relaxed
Measure = Callable[[dict[str, np.ndarray]], dict[str, float]]
PredictHeldOut = Callable[[dict[str, np.ndarray], None], dict[str, np.ndarray]]


@dataclass(frozen=True)
class RelaxedShares(SecondNumber):
    """The share of the lasso in the relaxed coefficients of each of P runs: the root key ``relax``."""

    @property
    def key(self) -> str:
        """The key of the configuration."""
        return self.name

    def apply(self, experiment: PreparedExperiment, index: int) -> PreparedExperiment:
        """Return the experiment with the share of the run ``index``; with 1 the lasso, without the key."""
        share = float(self.values[index])
        settings = replace(experiment.settings, relax=None if share == 1 else share)
        return experiment.with_resolved(settings=settings)


def make_shares(shares: tuple[float, ...], n_values: int) -> RelaxedShares:
    """Return the share of each run of the paths of ``n_values`` strengths, one path for each share."""
    return RelaxedShares("", "relax", np.repeat(shares, n_values), (0.0, 1.0))


def relax_fit(
    fit: PathFit,
    shares: Float[np.ndarray, " S"],
    refits: UnpenalizedRefits,
    measure: Measure,
    predict: PredictHeldOut,
) -> PathFit:
    """Return the fit of S paths, each of the relaxed coefficients with one share, from the fit of a path of P lassos.

    Each solution is measured, and its held-out rows predicted, by the last solution of its run. Metrics of the problem
    with the penalty are those of the lasso, and of share 1 alone. A run without a fit without a penalty has no metrics
    and NaN for its coefficients, and its state says why. The rounds and bytes of a run are counted for the first share.
    """
    lassos = [{name: values[p] for name, values in fit.solution.items()} for p in range(len(fit.end_state))]
    has_diverged = fit.end_state == END_STATES.index("diverged")
    ends = []
    for share in shares:
        for p, lasso in enumerate(lassos):
            state = int(fit.end_state[p])
            if has_diverged[p]:
                ends.append((lasso, {}, state))
                continue
            solution, metrics, state = _relax_run(lasso, float(share), state, refits, measure)
            if metrics and share == 1:
                metrics |= {name: float(fit.metrics[name][p]) for name in PENALIZED_METRICS if name in fit.metrics}
            ends.append((solution, metrics, state))
    names = dict.fromkeys(name for _, metrics, _ in ends for name in metrics)
    outputs = [predict(solution, None) for solution, _, _ in ends]
    return PathFit(
        metrics={name: np.array([metrics.get(name, np.nan) for _, metrics, _ in ends]) for name in names},
        solution={name: np.stack([solution[name] for solution, _, _ in ends]) for name in fit.solution},
        end_state=np.array([state for _, _, state in ends]),
        counts={
            name: np.concatenate([counts, np.zeros((len(shares) - 1) * len(counts), counts.dtype)])
            for name, counts in fit.counts.items()
        },
        held_out={name: np.stack([output[name] for output in outputs]) for name in outputs[0]},
    )


def _relax_run(
    lasso: Mapping[str, np.ndarray], share: float, state: int, refits: UnpenalizedRefits, measure: Measure
) -> tuple[dict[str, np.ndarray], dict[str, float], int]:
    """Return the relaxed coefficients of a solution, their metrics, and the position of their state in END_STATES."""
    try:
        with jax.enable_x64(True):
            solution, _ = relax_solution(refits, lasso, share)
    except NoRefit as error:
        nothing = {name: np.full_like(values, np.nan) for name, values in lasso.items()}
        return nothing, {}, END_STATES.index(error.state)
    return solution, keep_relaxed_metrics(measure(solution)), state
