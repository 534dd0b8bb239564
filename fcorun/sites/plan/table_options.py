"""The options of a site's own table, and the words of the agreement on one table.

``fcorun.data.datasets.sites.Sites`` has the options that all sites share.
"""

from dataclasses import dataclass
from pathlib import Path

from fcorun.base.config import PathOption

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
