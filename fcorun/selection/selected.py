"""What a selection is asked for, and what it is when it is done."""

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Literal

from fcorun.config import Count
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.records.record import Record
from fcorun.selection.choice import Choice
from fcorun.selection.coefficients import Coefficients, coefficients
from fcorun.selection.fitting import Fitted
from fcorun.selection.path import Path
from fcorun.selection.study import Study

ALL = "all"  # the fit of all training rows, among those of the folds


@dataclass(frozen=True)
class Options:
    """What ``fcorun select`` is asked for, beside a configuration.

    Attributes:
        folds: K, at least 2.
        points: strengths of the path, at least 2.
        by: whether rows within each client are held out, or whole clients.
        rule: the strength of the best mean, or of the simplest solution within one standard error of it.
        range: the least and the largest strength or radius; None: worked out from the data.
    """

    folds: Count = 5
    points: Count = 50
    by: Literal["rows", "clients"] = "rows"
    rule: Literal["min", "one_se"] = "min"
    range: list[float] | None = None

    def __post_init__(self):
        for name in ("folds", "points"):
            if getattr(self, name) < 2:
                raise UserError(f"{name}={getattr(self, name)} must be at least 2")


@dataclass(frozen=True)
class Selection:
    """A selection that is done.

    Attributes:
        study: its parts and its folder.
        metric: by which was chosen.
        fitted: the fits of all rows and of each fold, by name.
        cost: runs, rounds, bytes_up and bytes_down, of all of them.
        remarks: a sentence each.
        record: the refit on all rows.
    """

    study: Study
    options: Options
    path: Path
    metric: str
    fitted: dict[str, Fitted]
    choice: Choice
    cost: dict[str, int]
    remarks: list[str]
    record: Record | None = None

    @property
    def coefficients(self) -> Coefficients | None:
        """Those along the path of the model of all clients; None where it is not linear, or clients have only models
        of their own."""
        whole = self.fitted[ALL]
        if self.experiment.algo.personalises and not whole.counts["bytes_up"].any():
            return None
        return coefficients(whole.solution, self.data)

    @property
    def folder(self) -> FilePath:
        return self.study.folder

    @property
    def experiment(self) -> Experiment:
        return self.study.experiment

    @property
    def data(self) -> FederatedData:
        return self.study.data
