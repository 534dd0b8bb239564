"""The command in this process."""

from command import fcorun

__all__ = ["fcorun"]
