"""Data sets, one a file."""

from fcorun.data.datasets.dataset import Dataset, Features, FederatedData
from fcorun.data.rows.rows import Rows

__all__ = ["Dataset", "Features", "FederatedData", "Rows"]
