"""Drop-in pooling layers for PyTorch, and DirectML's pooling operators as functions.

``torch_dmlpool.nn`` has torch.nn's pooling layers under torch.nn's names, and ``nn.convert(model)``
replaces those of a model. The functions below have DirectML's names and defaults: a stride of 1,
and averages that leave padding out.

>>> import torch, torch_dmlpool as dmlpool
>>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.MaxPool2d(2))
>>> print(dmlpool.nn.convert(model))
replaced 1, left 0
  replaced  1  MaxPool2d: training keeps 1 byte per output, not 8, and no input for itself
>>> dmlpool.max_pooling(torch.rand(1, 3, 8, 8), window_size=3, strides=2, start_padding=1).shape
torch.Size([1, 3, 4, 4])
"""

from typing import TYPE_CHECKING, Any

from torch_dmlpool import keywords as _keywords
from torch_dmlpool import morphology, nn
from torch_dmlpool.backends.fallbacks import SlowBackendWarning
from torch_dmlpool.operators.adaptive_pooling import (
    adaptive_average_pooling,
    adaptive_max_pooling,
    adaptive_min_pooling,
)
from torch_dmlpool.operators.average_pooling import average_pooling, average_pooling_grad
from torch_dmlpool.operators.lp_pooling import lp_pooling
from torch_dmlpool.operators.max_pooling import max_pooling, max_pooling_grad
from torch_dmlpool.operators.max_unpooling import max_unpooling
from torch_dmlpool.operators.min_pooling import min_pooling
from torch_dmlpool.operators.quantized_linear_average_pooling import (
    quantized_linear_average_pooling,
)
from torch_dmlpool.operators.quantized_tensors import (
    quantized_average_pooling,
    quantized_max_pooling,
)
from torch_dmlpool.operators.segment_pooling import segment_pooling, token_pooling
from torch_dmlpool.operators.statistics_pooling import statistics_pooling
from torch_dmlpool.window import ArgumentError, Window

__version__ = "0.3.0"

__all__ = [
    "ArgumentError",
    "SlowBackendWarning",
    "Window",
    "__version__",
    "adaptive_average_pooling",
    "adaptive_max_pooling",
    "adaptive_min_pooling",
    "average_pooling",
    "average_pooling_grad",
    "lp_pooling",
    "max_pooling",
    "max_pooling_grad",
    "max_unpooling",
    "min_pooling",
    "morphology",
    "nn",
    "quantized_average_pooling",
    "quantized_linear_average_pooling",
    "quantized_max_pooling",
    "segment_pooling",
    "statistics_pooling",
    "token_pooling",
]


def __dir__() -> list[str]:
    """Public names: what completion shows."""
    return __all__


if not TYPE_CHECKING:  # a type checker would take every name to exist

    def __getattr__(name: str, module: str = __name__) -> Any:
        """Say where a name is that was looked for here: torch.nn's are in ``torch_dmlpool.nn``."""
        public = {"": __all__, "nn.": nn.__all__, "nn.functional.": nn.functional.__all__}
        return _keywords.missing(module, name, public)
