"""The options of a site's own table, the words of the agreement on one table, and errors for the owner alone.

``fcorun.data.datasets.sites.Sites`` has the options that all sites share.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fcorun.base.config import PathOption
from fcorun.base.errors import UserError
from fcorun.data.tables.parsed_table import Codes, FileOptions
from fcorun.sites.transport.delivery import public_sentence
from fcorun.sites.transport.messages import OwnerError

OTHER = "other"  # the level of rows whose own level is rare, or pooled with rare ones, or unseen in training rows
HISTOGRAM_BINS = 256  # for medians
# The keys of ``Message.about`` in the message of an agreement
AGREEMENT_KEYS = frozenset({"task", "classes", "encoding", "clients"})
FILLS, INFORMATIVE = "fills", "informative"  # the arrays with the fills and the features of a fold


@dataclass(frozen=True)
class SiteOptions:
    """The options of one site.

    Attributes:
        path: a file with named columns.
        client: the column of clients' names. None: that of the shared options, and without one the whole file is one
            client, called by the name of the file without its ending.
        rename: the shared name of columns by their name in the file.
        keep: columns that predictions.csv of the site repeats, such as the numbers of patients; no features.
        na, encoding, sheet: how the file is read, as ``fcorun.data.tables.parsed_table.FileOptions`` has them.
    """

    path: PathOption
    client: str | None = None
    rename: dict[str, str] | None = None
    keep: list[str] | None = None
    na: Codes = None
    encoding: str | None = None
    sheet: str | None = None

    def __post_init__(self):
        _ = self.file_options()  # raises the error of an unknown encoding

    @property
    def own_names(self) -> dict[str, str]:
        """The name of each renamed column in the file, by its shared name."""
        return {shared: name for name, shared in (self.rename or {}).items()}

    def file_options(self, missing: str = "refuse") -> FileOptions:
        """Return how the file is read, by a plan with ``data.missing``. Columns may have their shared names."""
        na = self.na
        if isinstance(na, dict):
            na = {self.own_names.get(name, name): codes for name, codes in na.items()}
        return FileOptions(na, self.encoding, self.sheet, na_is_missing=missing != "refuse")

    def for_predictions(self) -> dict[str, Any]:
        """Return the options of a table, by their names there, that rows to predict share with the site's file.

        These are the names of columns, the column of clients, those that predictions repeat, the codes of missing
        values by the shared names of columns, and the form of the file.
        """
        na = self.na
        if isinstance(na, dict):
            na = {(self.rename or {}).get(name, name): codes for name, codes in na.items()}
        options = {
            "client": self.client,
            "rename": self.rename,
            "keep": self.keep,
            "na": na,
            "file_encoding": self.encoding,
            "sheet": self.sheet,
        }
        return {name: value for name, value in options.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the options as they are written; those of the file, which are newer, where they are given."""
        options = asdict(self)
        for name in ("na", "encoding", "sheet"):
            if options[name] is None:
                del options[name]
        return options

    @property
    def file_client(self) -> str:
        """The name of the client of a file without a column of clients."""
        file = Path(self.path)
        compressed = file.suffix.lower() in (".gz", ".bz2")
        return Path(file.stem).stem if compressed else file.stem


class OwnTableError(OwnerError):
    """An error about a site's own table, whose sentence may quote cells of the table."""


@contextmanager
def for_owner_alone(public: str) -> Iterator[None]:
    """Raise OwnTableError with the sentence ``public`` in place of a UserError."""
    try:
        yield
    except OwnTableError:
        raise
    except UserError as error:
        raise OwnTableError(str(error), public) from error


class ObstaclesError(OwnTableError):
    """Several obstacles. The server sees the first one.

    Attributes:
        errors: the obstacles.
    """

    def __init__(self, errors: Sequence[UserError]):
        self.errors = list(errors)
        more = len(self.errors) - 1
        public = public_sentence(self.errors[0])
        super().__init__("; ".join(map(str, self.errors)), f"{public} (and {more} further obstacles)")


@dataclass
class Obstacles:
    """A list of obstacles that grows.

    Attributes:
        errors: the obstacles so far.
    """

    errors: list[UserError] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Add the error of a check to the list, instead of raising it."""
        try:
            yield
        except ObstaclesError as error:
            self.errors += error.errors
        except UserError as error:
            self.errors.append(error)

    def add(self, errors: Iterable[UserError]) -> None:
        """Add errors to the list."""
        self.errors += errors

    def raise_any(self) -> None:
        """Raise the obstacle, or ObstaclesError for several ones, if there are any."""
        if len(self.errors) > 1:
            raise ObstaclesError(self.errors)
        if self.errors:
            raise self.errors[0]
