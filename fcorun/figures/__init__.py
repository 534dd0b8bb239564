"""Figures of papers: what to run, how it is drawn, and what the paper claims of it, from conf/experiment."""

from fcorun.figures.reproduce import reproduce
from fcorun.figures.spec import Claim, Figure, load

__all__ = ["Claim", "Figure", "load", "reproduce"]
