"""An empty module in place of torchvision, for frameworks that import it for images: there are none here.

Its wheels go with one build of PyTorch each. Import this first.
"""

import sys
from unittest.mock import MagicMock

NAMES = ("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.transforms")
sys.modules |= {name: MagicMock() for name in NAMES}
