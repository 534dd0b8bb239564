"""Data sets, one a file."""

from fcorun.datasets.base import Dataset, FederatedData

__all__ = ["Dataset", "FederatedData"]
