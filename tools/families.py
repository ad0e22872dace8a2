"""The families of torch_dmlpool.nn: arguments and texts of their layers and functions.

tools/write_dimensions.py writes them into the package's source.
"""

from typing import NamedTuple


class Argument(NamedTuple):
    """An argument with its type, default and line of the docstring."""

    name: str
    kind: str
    default: str = ""
    text: str = ""

    def declared(self) -> str:
        return f"{self.name}: {self.kind}" + (f" = {self.default}" if self.default else "")


KERNEL = Argument(
    "kernel_size",
    "Integers",
    "",
    "Size of the window, at least 1: an int, or one per dimension, as for stride and dilation.",
)
STRIDE = Argument(
    "stride",
    "Integers | None",
    "None",
    "Step from one window to the next; ``kernel_size`` unless given.",
)
PADDING = Argument(
    "padding",
    "Padding",
    "0",
    "Padding at both ends, of any size: an int or one per dimension, ``((start, end), ...)``, "
    '``"same"`` or ``"valid"``{causal}. {padding}',
)
DILATION = Argument("dilation", "Integers", "1", "Step from one element of a window to the next.")
CEIL_MODE = Argument(
    "ceil_mode",
    "bool",
    "False",
    "Whether a last window may reach past the padded input, if it starts inside the input or the "
    "padding before it.",
)
COUNTED = Argument(
    "count_include_pad",
    "bool",
    "True",
    "Whether padding counts in the divisor. It adds nothing to the sum.",
)
DIVISOR = Argument(
    "divisor_override",
    "int | None",
    "None",
    "Divide every sum by this instead of the number of elements; not 0.",
)
NORM = Argument("norm_type", "float", "", "Exponent of the norm, at least 1, or ``math.inf``.")
OUTPUT = Argument(
    "output_size",
    "OutputSize",
    "",
    "Number of windows: an int or one per dimension. None keeps the input's size.",
)
INDICES = Argument(
    "return_indices",
    "bool",
    "False",
    "Whether to return a pair: the {extremes}, and their int64 positions in their channel's plane.",
)
MASK = Argument(
    "mask",
    "Tensor | None",
    "None",
    "A bool tensor with the input's dimensions, where sizes of 1 broadcast, or with the spatial "
    "ones alone. Elements where it is False are left out, NaN too.",
)
INPUT = Argument("input", "Tensor", "", "``{batched}``, or unbatched ``{unbatched}``.")
STAR = Argument("*", "")
POSITIONS = Argument(
    "indices", "Tensor", "", "Positions in the channel's plane, as max pooling returns them."
)
SCALES = [
    Argument(
        "input_scale",
        "float | Tensor",
        "1.0",
        "Real numbers per step of a plain input: a number, or a tensor of shape ``(C,)``.",
    ),
    Argument(
        "input_zero_point",
        "int | Tensor",
        "0",
        "The integer that represents 0 in a plain input, in the same forms.",
    ),
    Argument(
        "output_scale",
        "float | Tensor | None",
        "None",
        "The output's scale; the input's unless given.",
    ),
    Argument(
        "output_zero_point",
        "int | Tensor | None",
        "None",
        "The output's zero point; the input's unless given.",
    ),
    Argument(
        "output_dtype",
        "torch.dtype | None",
        "None",
        "int8 or uint8; the input's unless given.",
    ),
]


class Family(NamedTuple):
    """A layer and a function; texts have ``{rank}``, ``{ones}`` (``1, `` for each dimension but the
    last) and the shapes of inputs.
    """

    layer: str
    function: str
    arguments: list[Argument]
    constructed: list[Argument]
    called: list[Argument]
    summary: str
    of_layer: str
    example: str
    of_layers: str
    notes: str = ""
    torchs: str = "torch.nn.{layer}"
    extremes: str = ""
    padding: str = "Padding is never a maximum."


EXTREMES = [KERNEL, STRIDE, PADDING, DILATION, CEIL_MODE, INDICES]
CONSTRUCTED = [KERNEL, STRIDE, PADDING, DILATION, INDICES, CEIL_MODE]
SUMMED = "A padded element is 0 in the sum."
AVERAGED = [KERNEL, STRIDE, PADDING, CEIL_MODE, COUNTED]
NORMED = [NORM, KERNEL, STRIDE, CEIL_MODE, STAR, PADDING, DILATION]
# A new family also needs a function in nn/pools.py and a class in nn/families.py. Where it applies
# it goes into quantized_tensors._FAMILIES, exported._MAXIMA or _AVERAGES, quantizers._as_pytorch
# and conversion._effect, all in nn/.
FAMILIES: dict[str, Family] = {
    "maxima": Family(
        "MaxPool",
        "max_pool",
        [INPUT, *EXTREMES, STAR, MASK],
        CONSTRUCTED,
        [MASK],
        "Maxima over windows.",
        ":class:`torch.nn.MaxPool{rank}d` with any padding.",
        """\
>>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, {ones}4)
>>> values, indices = max_pool{rank}d(row, ({ones}2), stride=1, return_indices=True)
>>> values.flatten(), indices.flatten()
(tensor([3., 3., 5.]), tensor([1, 1, 3]))""",
        """\
>>> layer = MaxPool{rank}d(({ones}3), stride=1, padding="same")
>>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, {ones}4)).flatten()
tensor([4., 4., 4., 3.])""",
        extremes="maxima",
    ),
    "minima": Family(
        "MinPool",
        "min_pool",
        [INPUT, *EXTREMES, STAR, MASK],
        CONSTRUCTED,
        [MASK],
        "Minima over windows, with the arguments of :func:`max_pool{rank}d`.",
        "Minima over windows, with the arguments of :class:`MaxPool{rank}d`; torch.nn has no "
        "such layer.",
        """\
>>> row = torch.tensor([3.0, 1.0, 2.0, 5.0]).view(1, {ones}4)
>>> values, indices = min_pool{rank}d(row, ({ones}2), stride=1, return_indices=True)
>>> values.flatten(), indices.flatten()
(tensor([1., 1., 2.]), tensor([1, 1, 2]))""",
        """\
>>> layer = MinPool{rank}d(({ones}3), stride=1, padding="same")
>>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, {ones}4)).flatten()
tensor([1., 1., 2., 2.])""",
        torchs="_MaxPoolNd",
        extremes="minima",
        padding="Padding is never a minimum.",
    ),
    "averages": Family(
        "AvgPool",
        "avg_pool",
        [INPUT, *AVERAGED, DIVISOR, STAR, DILATION, MASK],
        [*AVERAGED, DIVISOR, STAR, DILATION],
        [MASK],
        "Averages over windows.",
        ":class:`torch.nn.AvgPool{rank}d` with any padding and with ``dilation``.",
        """\
>>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
>>> avg_pool{rank}d(row, ({ones}2), stride=1, dilation=2).flatten()
tensor([2., 3., 4.])""",
        """\
>>> row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, {ones}4)
>>> AvgPool{rank}d(({ones}2), stride=1, dilation=2)(row).flatten()
tensor([2., 3.])""",
        'As in torch.nn, padding counts by default, also that of ``padding="same"``: at the '
        "border averages are smaller. ``count_include_pad=False`` averages the elements alone, "
        "as TensorFlow does.",
        padding=SUMMED,
    ),
    "norms": Family(
        "LPPool",
        "lp_pool",
        [INPUT, *NORMED, MASK],
        NORMED,
        [MASK],
        "Norms of windows: the root of the sum of ``|x| ** norm_type``, as DirectML and ONNX "
        "define it.",
        ":class:`torch.nn.LPPool{rank}d` with the norms of DirectML and ONNX.",
        """\
>>> row = torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, {ones}4)
>>> lp_pool{rank}d(row, 2, ({ones}2)).flatten()
tensor([5., 2.])""",
        """\
>>> LPPool{rank}d(2, ({ones}2))(torch.tensor([3.0, -4.0]).view(1, {ones}2)).flatten()
tensor([5.])""",
        "PyTorch sums ``x ** norm_type``, so for negative elements it differs unless "
        "``norm_type`` is even. With ``ceil_mode`` it scales the sum of a window that reaches "
        "past the padded input up to that of a whole window; here it is not scaled.",
        padding=SUMMED,
    ),
    "adaptive_averages": Family(
        "AdaptiveAvgPool",
        "adaptive_avg_pool",
        [INPUT, OUTPUT, STAR, MASK],
        [OUTPUT],
        [MASK],
        "Averages over ``output_size`` windows that cover the input evenly; 1 is global pooling.",
        ":class:`torch.nn.AdaptiveAvgPool{rank}d`: averages over ``output_size`` windows that "
        "cover the input evenly; 1 is global pooling.",
        """\
>>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
>>> adaptive_avg_pool{rank}d(row, ({ones}2)).flatten()
tensor([2., 4.])""",
        """\
>>> row = torch.tensor([1.0, 2.0, 3.0]).view(1, {ones}3)
>>> AdaptiveAvgPool{rank}d(({ones}2))(row).flatten()
tensor([1.5000, 2.5000])""",
    ),
    "adaptive_maxima": Family(
        "AdaptiveMaxPool",
        "adaptive_max_pool",
        [INPUT, OUTPUT, INDICES, STAR, MASK],
        [OUTPUT, INDICES],
        [MASK],
        "Maxima over ``output_size`` windows that cover the input evenly.",
        ":class:`torch.nn.AdaptiveMaxPool{rank}d`: maxima over ``output_size`` windows that "
        "cover the input evenly.",
        """\
>>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, {ones}5)
>>> adaptive_max_pool{rank}d(row, ({ones}2)).flatten()
tensor([4., 5.])""",
        """\
>>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, {ones}3)
>>> AdaptiveMaxPool{rank}d(({ones}2))(row).flatten()
tensor([2., 2.])""",
        extremes="maxima",
    ),
    "adaptive_minima": Family(
        "AdaptiveMinPool",
        "adaptive_min_pool",
        [INPUT, OUTPUT, INDICES, STAR, MASK],
        [OUTPUT, INDICES],
        [MASK],
        "Minima over ``output_size`` windows that cover the input evenly.",
        "Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such "
        "layer.",
        """\
>>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, {ones}5)
>>> adaptive_min_pool{rank}d(row, ({ones}2)).flatten()
tensor([1., 2.])""",
        """\
>>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, {ones}3)
>>> AdaptiveMinPool{rank}d(({ones}2))(row).flatten()
tensor([1., 0.])""",
        torchs="_AdaptiveMaxPoolNd",
        extremes="minima",
    ),
    "unpooling": Family(
        "MaxUnpool",
        "max_unpool",
        [
            INPUT,
            POSITIONS,
            KERNEL._replace(text="Size of the window that pooled."),
            STRIDE._replace(text="Its stride; ``kernel_size`` unless given."),
            PADDING._replace(text="Its padding, in any form that max pooling takes."),
            Argument(
                "output_size",
                "Sequence[int] | None",
                "None",
                "The spatial sizes or all sizes of the output, each less than a stride from "
                "what the window gives.",
            ),
        ],
        [
            KERNEL._replace(text="Size of the window that pooled."),
            STRIDE._replace(text="Its stride; ``kernel_size`` unless given."),
            PADDING._replace(text="Its padding, in any form that max pooling takes."),
        ],
        [],
        "Every element at its index, zeros elsewhere.",
        ":class:`torch.nn.MaxUnpool{rank}d`: every element at its index, zeros elsewhere.",
        """\
>>> values, indices = torch.tensor([4.0, 5.0]), torch.tensor([1, 2])
>>> max_unpool{rank}d(values.view(1, {ones}2), indices.view(1, {ones}2), ({ones}2)).flatten()
tensor([0., 4., 5., 0.])""",
        """\
>>> values, indices = torch.tensor([4.0, 3.0]), torch.tensor([1, 2])
>>> MaxUnpool{rank}d(({ones}2))(values.view(1, {ones}2), indices.view(1, {ones}2)).flatten()
tensor([0., 4., 3., 0.])""",
        "Where several elements have the same index, the last of them in row-major order is "
        "written, and it alone gets a gradient. PyTorch writes any of them on a GPU and gives "
        "the gradient to all. Index -1 is skipped.",
    ),
}
QUANTIZED = [
    Family(
        "AvgPool",
        "",
        [],
        [*AVERAGED, STAR, DILATION, *SCALES],
        [],
        "",
        ":class:`torch.nn.AvgPool{rank}d` of quantized integers, which represent ``scale * "
        "(integer - zero_point)``.",
        "",
        """\
>>> scales = dict(input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
>>> layer = AvgPool{rank}d(({ones}2), **scales)
>>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, {ones}4)).flatten()
tensor([ 5, 15], dtype=torch.uint8)""",
        "int8 and uint8 tensors are averaged by "
        ":func:`~torch_dmlpool.quantized_linear_average_pooling`, quantized tensors (quint8, "
        "qint8), which have ``input_scale`` and ``input_zero_point`` of their own, by "
        ":func:`~torch_dmlpool.quantized_average_pooling`. Scales and zero points are buffers, so "
        "a ``state_dict`` holds them. Loading may change a buffer from one value to one per "
        "channel.",
        padding=SUMMED,
    ),
    Family(
        "AdaptiveAvgPool",
        "",
        [],
        [OUTPUT, STAR, *SCALES],
        [],
        "",
        ":class:`torch.nn.AdaptiveAvgPool{rank}d` of quantized integers, which represent ``scale * "
        "(integer - zero_point)``, or of quantized tensors.",
        "",
        """\
>>> layer = AdaptiveAvgPool{rank}d(1, input_scale=0.5, output_scale=0.25)
>>> layer(torch.tensor([10, 12, 14, 18], dtype=torch.uint8).view(1, {ones}4)).flatten()
tensor([27], dtype=torch.uint8)""",
        "All windows must have one size: the input's sizes are multiples of ``output_size``, as "
        "they always are of 1. :class:`torch_dmlpool.nn.AdaptiveAvgPool{rank}d` takes quantized "
        "tensors of any size.",
    ),
]
