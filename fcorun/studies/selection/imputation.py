"""Selections with ``imputations``: a path on each completed table of a fold, whose averages are judged.

The rows that a fold trains on teach the equations that draw their gaps, as the rows of a run do. Imputing within each
fold, not before rows are divided, leaves the rows that are held out unknown (Wahl, Boulesteix, Zierer, Thorand and van
de Wiel, BMC Med. Res. Methodol. 2016).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.subset import RowSubset
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.imputation_checks import has_gaps
from fcorun.results.models.relaxed import keep_relaxed_metrics
from fcorun.runs.imputed import average_solutions, complete_tables, prepare_tables
from fcorun.studies.selection.folds import describe_subset
from fcorun.studies.selection.path_fit import END_STATES, PathFit


def check_imputed_subsets(
    experiment: PreparedExperiment, names: Sequence[str], take_subset: Callable[[str], RowSubset]
) -> None:
    """Raise UserError if the gaps of the rows that a subset, by its name, trains on cannot be imputed."""
    for name in names:
        data = take_subset(name).data
        try:
            if has_gaps(data):
                prepare_tables(experiment, data)
        except UserError as error:
            where = "" if name not in names[1:] else f" (of the rows without {describe_subset(name)})"
            raise UserError(f"{error}{where}") from error


def complete_subset(experiment: PreparedExperiment, subset: RowSubset) -> Iterator[RowSubset]:
    """Yield a subset with its training rows completed, once for each imputation; once if they have no gaps."""
    if not has_gaps(subset.data):
        yield subset
        return
    for data in complete_tables(experiment, subset.data):
        x = subset.x.copy()
        x[subset.train_rows] = data.train.x
        yield replace(subset, data=data, x=x)


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
