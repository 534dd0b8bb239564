"""An empty module in place of torchvision, for frameworks that import torchvision for data sets of images.

Each wheel of torchvision works with one build of PyTorch only. Import this module first.
"""

import sys
from unittest.mock import MagicMock

NAMES = ("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.transforms")
sys.modules |= {name: MagicMock() for name in NAMES}
