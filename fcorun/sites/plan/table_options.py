"""The options of a site's own table, the policy of its owner, and errors that the owner alone may see.

``fcorun.data.datasets.sites.Sites`` has the options that all sites share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fcorun.base.config import PathOption
from fcorun.base.errors import UserError
from fcorun.sites.transport.messages import OwnerError

OTHER = "other"  # the level of rows whose own level is rare, or pooled with rare ones, or unseen in training rows
HISTOGRAM_BINS = 256  # for medians
# The keys of ``Message.about`` in the message of an agreement
AGREEMENT_KEYS = frozenset({"task", "classes", "encoding", "x_dtype", "y_dtype"})
AGREEMENT_KEYS |= {"clients", "site_of_client", "warnings", "site_warnings"}
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
    """

    path: PathOption
    client: str | None = None
    rename: dict[str, str] | None = None
    keep: list[str] | None = None

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
            of a client or group, and its training rows with a number in a column with gaps. With missing=indicator
            also its training rows with a gap.
        min_cell: the least count of a level, of a class in a split or fold, of training rows with a gap in a column of
            text, of held-out rows with and without a gap, of a sum of scores, and of a cell of a histogram.
        columns: the columns of the file that may be used, by their names in the file. None: all.
    """

    min_rows: int = 10
    min_cell: int = 3
    columns: tuple[str, ...] | None = None


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
