"""Quantizers of torchao that see this package's pools as those of torch.nn.

A quantizer reads a graph and leaves an annotation on each node that it wants quantized. It knows
PyTorch's operators by name. While it reads, pools of this package stand there under PyTorch's
names; what it has annotated is then quantized whatever it is called.
"""

import copy
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_SOURCES = "source_fn_stack"
"""Where quantizers look for the layer or function that a node comes from."""


def pooling_quantizer(quantizer: Any) -> Any:
    """Let a quantizer of torchao treat this package's pools as it treats torch.nn's.

    Args:
        quantizer: A quantizer for ``prepare_pt2e`` or ``prepare_qat_pt2e``, with its configuration
            set, such as ``X86InductorQuantizer`` or ``XNNPACKQuantizer``.

    Returns:
        A copy of the quantizer. It annotates this package's max pools as ``aten.max_pool2d``,
        averages as ``aten.avg_pool2d``, and averages of whole planes as
        ``aten.adaptive_avg_pool2d``, in one and three dimensions too. Maxima with indices, minima,
        p-norms and pools with a mask stay in floating point.

    Raises:
        TypeError: ``quantizer`` has no method ``annotate``.

    Without it a model that has this package's layers already keeps them as float operations, and
    `integer_pooling` finds nothing to replace.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e  # doctest: +SKIP
        >>> quantizer = X86InductorQuantizer().set_global(configuration)  # doctest: +SKIP
        >>> prepared = prepare_pt2e(  # doctest: +SKIP
        ...     exported, dmlpool.nn.pooling_quantizer(quantizer))

    """
    if not callable(getattr(quantizer, "annotate", None)):
        raise TypeError(
            "quantizer must be a quantizer of torchao, which has a method annotate, got "
            f"{type(quantizer).__name__}"
        )
    result = copy.copy(quantizer)
    annotate = result.annotate

    def annotated(model: fx.GraphModule) -> Any:
        pools: Any = {node: _as_pytorch(node) for node in model.graph.nodes}
        kept = [(node, node.target, node.meta.get(_SOURCES)) for node in pools if pools[node]]
        try:
            for node, _, _ in kept:
                node.target, layer = pools[node]
                node.meta[_SOURCES] = [(node.name, layer)]
            return annotate(model)
        finally:
            for node, target, sources in kept:
                node.target, node.meta[_SOURCES] = target, sources
                if sources is None:
                    del node.meta[_SOURCES]

    result.annotate = annotated
    return result


def _as_pytorch(node: fx.Node) -> tuple[Any, type[torch.nn.Module]] | None:
    """PyTorch's operator and layer for a pool with one result; None for other nodes."""
    ours, target = torch.ops.dmlpool, node.target
    average, adaptive = ours.average_pooling.default, ours.adaptive_average_pooling.default
    if target is average and all(type(n) is int and n == 1 for n in node.meta["val"].shape[2:]):
        target = adaptive
    kinds: Any = {
        ours.max_pooling.default: (_aten.max_pool2d.default, torch.nn.MaxPool2d),
        average: (_aten.avg_pool2d.default, torch.nn.AvgPool2d),
        adaptive: (_aten.adaptive_avg_pool2d.default, torch.nn.AdaptiveAvgPool2d),
    }
    return kinds.get(target)
