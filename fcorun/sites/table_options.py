"""The options of a table whose rows stay at several sites: those that all sites share, and those of one site."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from fcorun.config import Index, PathOption
from fcorun.datasets.table import Table
from fcorun.errors import UserError
from fcorun.tables.fit_encoding import MissingPolicy

OTHER = "other"  # the level of rows whose own level is rare at their site
HISTOGRAM_BINS = 256  # for medians
_NOT_OF_TABLE = ("classes", "ranges")  # options that data=table does not have


@dataclass(frozen=True)
class SharedOptions:
    """The options that all sites share, which a plan lists.

    ``fcorun.datasets.table.Table`` describes the options that a table in one file has too.

    Attributes:
        classes: the labels in the order of the class indices. None: all labels, sorted; a binary task then needs
            ``positive``, so that no site decides which class is the positive one.
        ranges: the least and the largest value of columns of numbers, between which ``missing`` "median" counts values
            in bins of equal width: a median within a bin is not exact.
        client: the column of clients' names, unless a site names another. Without one, a file is one client.
    """

    target: str
    task: Literal["regression", "binary", "multiclass"] = "regression"
    classes: list[str] | None = None
    positive: str | bool | None = None
    only: list[str] | None = None
    ignore: list[str] | None = None
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

    def __post_init__(self):
        self.as_table("", self.client)
        if self.classes is not None:
            self._check_classes(self.classes)
        elif self.task == "binary" and self.positive is None:
            raise UserError("data.positive has no value: name the positive class, since no site decides it")
        for name, bounds in (self.ranges or {}).items():
            if len(bounds) != 2 or not bounds[0] < bounds[1]:
                raise UserError(f"data.ranges: '{name}' has {bounds}: give the least and the largest value, [0, 120]")

    def _check_classes(self, classes: list[str]) -> None:
        listed = f"data.classes=[{','.join(classes)}]"
        if self.task == "regression":
            raise UserError(f"{listed} are for a classification: leave them out, or give data.task=binary")
        if len(set(classes)) != len(classes) or len(classes) < 2 or (self.task == "binary" and len(classes) > 2):
            raise UserError(f"{listed} must be different labels, two of a binary task: mend the list")
        if self.positive is not None and str(self.positive) != classes[1]:
            raise UserError(f"data.positive={self.positive} is not the second of {listed}: leave data.positive out, or "
                            "change the order")  # fmt: skip

    def as_table(self, path: str, client: str | None) -> Table:
        """Return the options of the table at ``path``. Raises UserError for options that do not fit each other."""
        shared = {
            option.name: getattr(self, option.name) for option in fields(self) if option.name not in _NOT_OF_TABLE
        }
        return Table(**shared | {"path": path, "client": client})


@dataclass(frozen=True)
class SiteOptions:
    """The options of one site.

    Attributes:
        path: a file with named columns.
        client: the column of clients' names. None: that of the shared options, and without one the whole file is one
            client, called by the name of the file without its ending.
        rename: the shared name of columns by their name in the file.
    """

    path: PathOption
    client: str | None = None
    rename: dict[str, str] | None = None

    @property
    def file_client(self) -> str:
        """The name of the client of a file without a column of clients."""
        file = Path(self.path)
        compressed = file.suffix.lower() in (".gz", ".bz2")
        return Path(file.stem).stem if compressed else file.stem


@dataclass(frozen=True)
class TablePolicy:
    """The rules of a site's owner for a table.

    Attributes:
        min_rows: the least number of rows of each set that an answer sums over: the training, validation or test rows
            of a client.
        min_cell: the least count of a level, of a class, and of a cell of a histogram that an answer has.
        columns: the columns of the file that may be used, by their names in the file. None: all.
    """

    min_rows: int = 10
    min_cell: int = 3
    columns: tuple[str, ...] | None = field(default=None)


class OwnTableError(UserError):
    """An error about a site's own table, whose sentence may quote cells of the table and is for its owner alone.

    Attributes:
        public: the sentence that the server may see.
    """

    def __init__(self, sentence: str, public: str):
        super().__init__(sentence)
        self.public = public


@contextmanager
def for_owner_alone(public: str) -> Iterator[None]:
    """Raise OwnTableError with the sentence ``public`` in place of a UserError."""
    try:
        yield
    except OwnTableError:
        raise
    except UserError as error:
        raise OwnTableError(str(error), public) from error
