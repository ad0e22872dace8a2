"""Graph patterns that compute sigmoid or tanh, which never decrease, after max pooling in place of
before it.

The results are the same, with fewer evaluations. Gradients need the function's own results: where
they flow the graph is left as it is. ReLU and similar functions cost too little for it to matter.

The patterns stand in Inductor's own list, under this package's operator: they are looked at in
graphs with that operator alone. Passes of others run where the user's settings name them
(``torch._inductor.config.post_grad_custom_pre_pass`` and its like), which are not this package's to
write. When an operator is lowered the graph before it is not known any more.
"""

from typing import Any

import torch
from torch._inductor.fx_passes.post_grad import pass_patterns
from torch._inductor.pattern_matcher import (
    CallFunction,
    Ignored,
    KeywordArg,
    Match,
    register_graph_pattern,
)
from torch.fx import Node

from torch_dmlpool.inductor import is_lowering
from torch_dmlpool.inductor.geometry import is_never_empty
from torch_dmlpool.window import Window

_POOLING, _SIGMOID = torch.ops.dmlpool.max_pooling.default, torch.ops.aten.sigmoid.default


def _is_faster_and_same(match: Match) -> bool:
    """Whether pooling first gives the same result in less time.

    Maxima must be at most half as many as the elements, of the same data type and strides. No
    window may be empty, as f(-inf) is not the -inf of an empty window.
    """
    pooling: Any = match.output_node()
    x, function, arguments = match.kwargs["x"], pooling.args[0], pooling.args[1:]
    before, between, after = (node.meta["val"] for node in (x, function, pooling))
    numbers = [
        *before.shape,
        *after.shape,
        *(number for entry in arguments[:5] for number in entry),
    ]
    are_known = is_lowering() and all(type(number) is int for number in numbers)
    are_alike = before.dtype is between.dtype and before.stride() == between.stride()
    if not are_known or not are_alike or before.numel() < 2 * after.numel():
        return False
    window = Window.directml(before.dim() - 2, *arguments)
    # These were measured at 0.8 to 1.0 times the speed of the graph as it was, all others at up to
    # 4 times.
    is_slower = function.target is _SIGMOID and window.taps <= 4 and before.stride(1) == 1
    return not is_slower and is_never_empty(window, before.shape[2:])


def _pool_first(match: Match, x: Node) -> None:
    """Replace pooling of a function by the function of pooling."""
    pooling: Any = match.output_node()
    with match.graph.inserting_before(pooling):
        maxima = match.graph.call_function(_POOLING, (x, *pooling.args[1:]), pooling.kwargs)
        results = match.graph.call_function(pooling.args[0].target, (maxima,))
    maxima.meta, results.meta = {**pooling.meta}, {**pooling.meta}
    pooling.replace_all_uses_with(results)
    match.erase_nodes()


_RISING = CallFunction([_SIGMOID, torch.ops.aten.tanh.default], KeywordArg("x"))
# Only graphs of torch.compile have the revision as an argument.
_WINDOW = [Ignored() for _ in range(6)]
for pattern in (
    CallFunction(_POOLING, _RISING, *_WINDOW),
    CallFunction(_POOLING, _RISING, *_WINDOW, revision=Ignored()),
):
    register_graph_pattern(pattern, extra_check=_is_faster_and_same, pass_dict=pass_patterns[0])(
        _pool_first
    )
