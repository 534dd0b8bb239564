"""Tables whose rows stay with their owners, at several sites."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np

from fcorun.base.config import Count, Index, Positive, SplitSeed
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.datasets.table import Table
from fcorun.data.rows.site_rows import AwayRule
from fcorun.data.tables.cells import names_as_text
from fcorun.data.tables.encoding import MissingPolicy
from fcorun.data.tasks import Survival, Task, find_task


@dataclass(frozen=True)
class Sites(Dataset):
    """The options that the tables of all sites share, which a plan lists.

    ``conf/data/sites.yaml`` explains them. Options that ``Table`` has, too, mean the same here.

    Attributes:
        by_site: whether scores.csv has the scores of single sites, which the owners of all sites must allow.
        load_from_sites: asks connected sites for what the server knows of their rows; None: no site is connected.
        digest: stands for the rows of the connected sites in the identity of a run.
    """

    source = "yours"

    target: str
    task: str = "regression"
    classes: list[str] | None = None
    positive: str | bool | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
    by_site: bool = False
    away: Annotated[Literal["wait", "skip"], "default outside identity"] = "wait"
    away_seconds: Annotated[Positive, "default outside identity"] = 60.0
    least_sites: Annotated[Count, "default outside identity"] = 2
    client: str | None = None
    missing: MissingPolicy = "refuse"
    ranges: dict[str, list[float]] | None = None
    standardize: Literal["none", "pooled", "per_client"] = "none"
    validation: float | list[str] | None = None
    test: float | list[str] | None = None
    seed: Index = 0
    weight: str | None = None
    offset: str | None = None
    group: str | None = None
    group_across: Literal["refuse", "keep"] = "refuse"
    split: str | None = None
    fold: str | None = None
    event: Annotated[str | None, "default outside identity"] = None
    fold_names: Annotated[list[str] | None, "default outside identity"] = None
    splines: Annotated[dict[str, int] | None, "default outside identity"] = None
    split_seed: SplitSeed = None
    load_from_sites: Annotated[Any, "outside identity", "in memory"] = None
    digest: Annotated[Any, "outside identity", "in memory"] = None

    def __post_init__(self):
        self.as_table("", self.client)
        if self.group_across == "keep":
            raise UserError("`data.group_across=keep` would let one patient count as several at a site, at each of its "
                            "clients: leave it out, and `data.client`, too, if a patient has rows of several, so "
                            "that each site is one client")  # fmt: skip
        if self.event is not None:
            object.__setattr__(self, "task", Survival.name)
        elif self.target_task.has_events:
            raise UserError("`data.task=survival` needs `data.event`: name the column of 1 for an event, 0 for a "
                            "censored row")  # fmt: skip
        if self.target_task.has_order:
            raise UserError(f"`data.task={self.task}` is for rows in one place, since nobody has examined what a site "
                            "would tell by it: give `data.task=multiclass`")  # fmt: skip
        if self.classes is not None:
            self._check_classes(self.classes)
        elif self.target_task.has_two_classes and self.positive is None:
            raise UserError("`data.positive` has no value: name the positive class, since no site decides it")
        if self.fold_names is not None:
            object.__setattr__(self, "fold_names", names_as_text(np.array(self.fold_names, str)).tolist())
            listed = f"`data.fold_names=[{','.join(self.fold_names)}]`"
            if self.fold is None:
                raise UserError(f"{listed} are the folds of a column: give `data.fold=COLUMN`, or leave them out")
            if len(set(self.fold_names)) != len(self.fold_names) or len(self.fold_names) < 2:
                raise UserError(f"{listed} must be two or more different names: mend the list")
        for name, bounds in (self.ranges or {}).items():
            if len(bounds) != 2 or not bounds[0] < bounds[1]:
                raise UserError(f"`data.ranges`: '{name}' has {bounds}: give the least and the largest value, [0, 120]")
        for name in self.splines or {}:
            if name not in (self.ranges or {}):
                raise UserError(f"`data.splines` takes the knots of '{name}' from counts in bins, and `data.ranges` "
                                f"has no bounds for it: give `data.ranges={{{name}: [LEAST, LARGEST]}}`")  # fmt: skip

    @property
    def target_task(self) -> Task:
        """The task of the targets."""
        return find_task(self.task)

    def order_labels(self, labels: Iterable[Any]) -> list[Any]:
        """Return labels of one type in the order in which all sites number the classes."""
        if self.classes is not None:
            return sorted(labels, key=lambda label: self.classes.index(str(label)))  # type: ignore[union-attr]
        ordered = sorted(labels)
        if self.positive is not None:
            ordered.sort(key=lambda label: str(label) == str(self.positive))
        return ordered

    @property
    def away_rule(self) -> AwayRule | None:
        """The rule by which sites without an answer are left out; None: all sites are waited for."""
        if self.away == "skip":
            return AwayRule(self.away_seconds, self.least_sites)
        return None

    def fold_seed(self, seed: int) -> int:
        """Return the seed of the held-out rows and of the folds, which is not that of the run: see ``split_seed``."""
        return super().fold_seed(self.seed)

    def _check_classes(self, classes: list[str]) -> None:
        listed = f"`data.classes=[{','.join(classes)}]`"
        if not self.target_task.has_classes:
            raise UserError(f"{listed} are for a classification: leave them out, or give `data.task=binary`")
        has_too_many = self.target_task.has_two_classes and len(classes) > 2
        if len(set(classes)) != len(classes) or len(classes) < 2 or has_too_many:
            raise UserError(f"{listed} must be different labels, two of a binary task: mend the list")
        if self.positive is not None and str(self.positive) != classes[1]:
            raise UserError(f"`data.positive={self.positive}` is not the second of {listed}: leave `data.positive` "
                            "out, or change the order")  # fmt: skip

    def as_table(self, path: str, client: str | None) -> Table:
        """Return the options of the table at ``path``. Raises UserError for options that do not fit each other."""
        names = {option.name for option in fields(Table)} & {option.name for option in fields(self)}
        shared = {name: getattr(self, name) for name in names}
        return Table(**shared | {"path": path, "client": client, "split_seed": self.fold_seed(self.seed)})

    def load(self) -> FederatedData:
        """Return what the server knows of the rows of connected sites."""
        if self.load_from_sites is None:
            raise UserError("`data=sites` has its rows at their sites: make a plan, fcorun plan ... `data=sites` --out "
                            "study.yaml, and have fcorun site try, or fcorun site run, compute it")  # fmt: skip
        load: Callable[[], FederatedData] = self.load_from_sites
        return load()

    def sources(self) -> Any:
        return self.digest
