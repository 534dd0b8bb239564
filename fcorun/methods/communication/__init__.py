"""Topologies and channels (what happens to an upload on its way), a family a file; the plain ones in ``contracts``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # imports a name when it is first used
