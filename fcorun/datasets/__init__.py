"""Data sets, one a file."""

from fcorun.datasets.base import Dataset, Features, FederatedData
from fcorun.rows.rows import Rows

__all__ = ["Dataset", "Features", "FederatedData", "Rows"]
