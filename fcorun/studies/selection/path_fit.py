"""Fit of a path of strengths on a subset of the rows: its file, its relaxation, its average and its predictions.

With ``imputations``, a path runs on each completed table of a fold, and the averages of the fits are judged. The rows
that a fold trains on teach the equations that draw their gaps, as the rows of a run do. Imputing within each fold, not
before rows are divided, leaves the rows that are held out unknown (Wahl, Boulesteix, Zierer, Thorand and van de Wiel,
BMC Med. Res. Methodol. 2016).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Bool, Float

from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.records.record import MAX_PREDICTED_ROWS, OUT_OF_FOLD, PERSONAL, SHARED
from fcorun.base.system.files import write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.predictions import Predictions, describe_output
from fcorun.results.models.relaxed import (
    PENALIZED_METRICS,
    REFIT_FAILURES,
    NoRefit,
    UnpenalizedRefits,
    keep_relaxed_metrics,
    relax_solution,
)
from fcorun.runs.imputed import average_solutions

# saved by position: add new states at the end
END_STATES = ("done", "falling", "diverged", "not certified", *REFIT_FAILURES)
_MAX_OUTPUTS = 2**27  # outputs for held-out rows that are kept, half a gigabyte in float32


@dataclass(frozen=True)
class PathFit:
    """The runs of a path of P strengths on a subset of the rows.

    Attributes:
        metrics: tail averages by name, each (P,); NaN of a run that diverged.
        solution: parameters by name, with leading axis P.
        end_state: the position in END_STATES of the state in which each run ended, (P,).
        counts: rounds, bytes_up and bytes_down of each run, each (P,); the bytes of edges are included.
        held_out: the outputs of the shared and of the personal models for the subset's validation rows, without
            offsets, each (P, V) or (P, V, classes); empty without validation rows, or if ``keeps_held_out`` is false.
    """

    metrics: dict[str, np.ndarray]
    solution: dict[str, np.ndarray]
    end_state: np.ndarray
    counts: dict[str, np.ndarray]
    held_out: dict[str, np.ndarray] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the fit to an npz file, whose keys are GROUP/NAME."""
        groups = {
            "metrics": self.metrics,
            "solution": self.solution,
            "counts": self.counts,
            "held_out": self.held_out,
        }
        arrays = {f"{group}/{name}": array for group, members in groups.items() for name, array in members.items()}
        write_atomically(path, npz_bytes(arrays | {"/end": self.end_state}))

    @classmethod
    def load(cls, path: Path) -> "PathFit | None":
        """Read a fit from a file; return None if the file is missing or damaged."""
        try:
            groups: dict[str, dict] = {"metrics": {}, "solution": {}, "counts": {}, "held_out": {}, "": {}}
            for key, array in read_npz(path).items():
                group, _, name = key.partition("/")
                groups[group][name] = array
            end_state = groups.pop("")["end"]
            return cls(**groups, end_state=end_state)
        except READ_ERRORS:
            return None


def keeps_held_out(data: FederatedData, n_values: int, n_rows: int) -> bool:
    """Return whether the outputs for ``n_rows`` rows, each held out once, of runs at ``n_values`` values are kept."""
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    return n_rows <= MAX_PREDICTED_ROWS and n_rows * n_values * outputs <= _MAX_OUTPUTS


def find_runs(fits: Mapping[str, PathFit], state: str) -> Bool[np.ndarray, "S P"]:
    """Return a mask of the runs of S fits at P values that ended in a state of END_STATES."""
    return np.stack([fit.end_state for fit in fits.values()]) == END_STATES.index(state)


Measure = Callable[[dict[str, np.ndarray]], dict[str, float]]
PredictHeldOut = Callable[[dict[str, np.ndarray], None], dict[str, np.ndarray]]


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


def average_fits(fits: Sequence[PathFit], measure: Callable[[dict[str, np.ndarray]], dict[str, float]]) -> PathFit:
    """Return the fit of the averages of the solutions to completed tables, each measured by ``measure``.

    An average has diverged if a solution has. Outputs are averaged, since those of averaged linear models are averages.
    """
    states = np.stack([fit.end_state for fit in fits])
    has_diverged = (states == END_STATES.index("diverged")).any(axis=0)
    solution = average_solutions([fit.solution for fit in fits])
    metrics = [
        {} if diverged else keep_relaxed_metrics(measure({name: values[p] for name, values in solution.items()}))
        for p, diverged in enumerate(has_diverged)
    ]
    names = dict.fromkeys(name for measured in metrics for name in measured)
    return PathFit(
        metrics={name: np.array([measured.get(name, np.nan) for measured in metrics]) for name in names},
        solution=solution,
        end_state=np.where(has_diverged, END_STATES.index("diverged"), states.max(axis=0)),
        counts={name: np.sum([fit.counts[name] for fit in fits], axis=0) for name in fits[0].counts},
        held_out=average_solutions([fit.held_out for fit in fits]),
    )


def join_folds(
    objective: Objective,
    data: FederatedData,
    rows: Mapping[int, np.ndarray],
    outputs: Sequence[Mapping[str, np.ndarray]],
) -> list[Predictions]:
    """Return the predictions of all training rows, by each kind of model whose outputs are finite in every fold.

    Args:
        rows: the rows that each fold holds out, by the number of the fold, from 1; each row is held out once.
        outputs: the outputs for these rows, by SHARED or PERSONAL model.
    """
    number = np.repeat(list(rows), [len(of_fold) for of_fold in rows.values()])
    order = np.argsort(np.concatenate(list(rows.values())))
    predictions = []
    for model in (SHARED, PERSONAL):
        if not all(model in of_fold and np.isfinite(of_fold[model]).all() for of_fold in outputs):
            continue
        described = describe_output(
            objective,
            data,
            data.train,
            np.concatenate([of_fold[model] for of_fold in outputs])[order],
            clients=data.client_of_row("train"),
            split=OUT_OF_FOLD,
            model=model,
            fold=number[order],
        )
        predictions.append(described)
    return predictions
