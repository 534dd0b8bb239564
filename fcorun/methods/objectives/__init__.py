"""Objectives f, one or one family in each file."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # imports a name when it is first used
