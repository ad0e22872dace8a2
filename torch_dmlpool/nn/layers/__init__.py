"""torch.nn's pooling layers on this package's operators: subclasses without state of their own."""

from torch_dmlpool.nn.layers import averages, maxima, minima, unpooling
from torch_dmlpool.nn.layers.averages import *  # noqa: F403
from torch_dmlpool.nn.layers.maxima import *  # noqa: F403
from torch_dmlpool.nn.layers.minima import *  # noqa: F403
from torch_dmlpool.nn.layers.unpooling import *  # noqa: F403

__all__: list[str] = []
__all__ += averages.__all__
__all__ += maxima.__all__
__all__ += minima.__all__
__all__ += unpooling.__all__
