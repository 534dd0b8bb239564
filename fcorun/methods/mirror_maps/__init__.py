"""Mirror maps h, one or one family in each file; the Euclidean one is in ``mirror_map``."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # imports a name when it is first used
