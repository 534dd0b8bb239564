"""Topologies and channels (what happens to an upload on its way), one a file; the plainest are in ``contracts``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # imports a name when it is first used
