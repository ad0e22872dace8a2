"""A program as users write it, with every public name; of layers and functions it has those for
two dimensions, from which tools/write_dimensions.py writes the others. tests/test_types.py runs it,
and has mypy and pyright read it in their strict modes. Each ``assert_type`` says what they must
find."""

from typing import Literal, assert_type

import torch
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from torch_dmlpool import distributed, inductor, onnx
from torch_dmlpool.decompositions import decompositions
from torch_dmlpool.nn import functional as F  # noqa: N812

Pair = tuple[Tensor, Tensor]


def operators(x: Tensor) -> None:
    assert_type(dmlpool.average_pooling(x, 2, strides=(2, 1)), Tensor)
    assert_type(dmlpool.average_pooling_grad(x, (1, 2, 9, 9), 2), Tensor)
    assert_type(dmlpool.lp_pooling(x, 2, p=3.0), Tensor)
    assert_type(dmlpool.adaptive_average_pooling(x, (2, None)), Tensor)
    assert_type(dmlpool.max_pooling_grad(torch.rand(1, 2, 9, 9), x, 2), Tensor)
    assert_type(dmlpool.max_pooling(x, 2), Tensor)
    assert_type(dmlpool.max_pooling(x, 2, return_indices=True), Pair)
    assert_type(dmlpool.min_pooling(x, 2), Tensor)
    assert_type(dmlpool.min_pooling(x, 2, return_indices=True), Pair)
    assert_type(dmlpool.adaptive_max_pooling(x, 2), Tensor)
    assert_type(dmlpool.adaptive_max_pooling(x, 2, return_indices=True), Pair)
    assert_type(dmlpool.adaptive_min_pooling(x, 2), Tensor)
    assert_type(dmlpool.adaptive_min_pooling(x, 2, return_indices=True), Pair)
    rows, offsets = torch.rand(5, 3), torch.tensor([0, 2, 5])
    assert_type(dmlpool.segment_pooling(rows, offsets), Tensor)
    assert_type(dmlpool.segment_pooling(rows, offsets, "max", return_indices=True), Pair)
    assert_type(dmlpool.token_pooling(torch.rand(1, 5, 3), torch.ones(1, 5).bool(), "min"), Tensor)
    assert_type(dmlpool.morphology.opening(torch.rand(1, 3, 8, 8), 3), Tensor)
    assert_type(dmlpool.statistics_pooling(x, correction=0), Pair)
    assert_type(
        dmlpool.max_unpooling(*dmlpool.max_pooling(x, 2, 2, return_indices=True), x.shape), Tensor
    )
    image = (x * 9).to(torch.uint8)
    assert_type(
        dmlpool.quantized_linear_average_pooling(image, 0.5, 3, 0.25, None, window_size=2), Tensor
    )
    try:
        dmlpool.max_pooling(x, 99)
    except dmlpool.ArgumentError as error:
        assert_type(error, dmlpool.ArgumentError)
    window = dmlpool.Window.directml(2, 3, strides=(2, 1), start_padding=1)
    assert_type(window, dmlpool.Window)
    assert_type(window.output_sizes((8, 8)), tuple[int, ...])
    assert_type(dmlpool.Window.pytorch(2, 3, padding="same"), dmlpool.Window)
    assert_type(dmlpool.__version__, str)
    assert issubclass(dmlpool.SlowBackendWarning, Warning)


def functions(image: Tensor) -> None:
    assert_type(F.avg_pool2d(input=image, kernel_size=2, dilation=2), Tensor)
    assert_type(F.lp_pool2d(image, 2, 2, padding=1), Tensor)
    assert_type(F.adaptive_avg_pool2d(image, 2), Tensor)
    assert_type(F.max_pool2d(image, 2), Tensor)
    assert_type(F.max_pool2d(image, 2, return_indices=True), Pair)
    assert_type(F.min_pool2d(image, 2), Tensor)
    assert_type(F.min_pool2d(image, 2, return_indices=True), Pair)
    assert_type(F.adaptive_max_pool2d(image, 2), Tensor)
    assert_type(F.adaptive_max_pool2d(image, 2, return_indices=True), Pair)
    assert_type(F.adaptive_min_pool2d(image, 2), Tensor)
    assert_type(F.adaptive_min_pool2d(image, 2, return_indices=True), Pair)
    assert_type(F.max_pool2d_with_indices(image, 2), Pair)
    assert_type(F.adaptive_max_pool2d_with_indices(image, 2), Pair)
    values, indices = F.max_pool2d(image, 2, 2, 0, 1, False, return_indices=True)
    assert_type(F.max_unpool2d(values, indices, 2), Tensor)


def layers(image: Tensor) -> None:
    assert_type(dmlpool.nn.AvgPool2d(2, padding="same")(image), Tensor)
    assert_type(dmlpool.nn.LPPool2d(2, 2)(image), Tensor)
    assert_type(dmlpool.nn.AdaptiveAvgPool2d(2)(image), Tensor)
    assert_type(dmlpool.nn.TokenPool("max")(torch.rand(1, 5, 3)), Tensor)
    assert_type(dmlpool.nn.SegmentPool()(torch.rand(5, 3), torch.tensor([0, 5])), Tensor)
    assert_type(dmlpool.nn.StatisticsPool()(image), Tensor)
    assert_type(dmlpool.nn.MaxPool2d(2)(image), Tensor)
    assert_type(dmlpool.nn.MaxPool2d(2, return_indices=True)(image), Pair)
    is_wanted = bool(image.dim())
    assert_type(dmlpool.nn.MaxPool2d(2, return_indices=is_wanted)(image), Tensor | Pair)
    assert_type(dmlpool.nn.MinPool2d(2)(image), Tensor)
    assert_type(dmlpool.nn.MinPool2d(2, return_indices=True)(image), Pair)
    assert_type(dmlpool.nn.AdaptiveMaxPool2d(2)(image), Tensor)
    assert_type(dmlpool.nn.AdaptiveMaxPool2d(2, return_indices=True)(image), Pair)
    assert_type(dmlpool.nn.AdaptiveMinPool2d(2)(image), Tensor)
    assert_type(dmlpool.nn.AdaptiveMinPool2d(2, return_indices=True)(image), Pair)
    values, indices = dmlpool.nn.MaxPool2d(2, 2, 0, 1, return_indices=True)(image)
    assert_type(dmlpool.nn.MaxUnpool2d(2)(values, indices), Tensor)


class Model(nn.Module):
    """A layer of maxima without indices needs no type argument, one with indices does."""

    pool: dmlpool.nn.MaxPool2d
    winners: dmlpool.nn.MaxPool2d[Literal[True]]

    def __init__(self) -> None:
        super().__init__()
        self.pool = dmlpool.nn.MaxPool2d(3, stride=1, padding=((0, 2), (1, 1)))
        self.winners = dmlpool.nn.MaxPool2d(2, return_indices=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        values, _ = self.winners(self.pool(x, mask=mask))
        return values


def models(image: Tensor) -> None:
    conversion = dmlpool.nn.convert(nn.Sequential(nn.MaxPool2d(2)))
    assert_type(conversion, dmlpool.nn.Conversion)
    assert_type(conversion.model, nn.Module)
    assert_type(conversion.replaced, dict[str, str])
    with dmlpool.nn.reverted(conversion.model) as stayed:
        assert_type(stayed, dmlpool.nn.Conversion)
    with dmlpool.nn.rerouted():
        assert Model()(image).shape == (1, 2, 4, 4)
    program = torch.export.export(Model(), (image,))
    assert_type(dmlpool.nn.integer_pooling(program), torch.export.ExportedProgram)
    assert callable(dmlpool.nn.pooling_quantizer)
    assert len(onnx.translations()) > 9
    assert len(decompositions()) > 9
    assert distributed.__name__ == "torch_dmlpool.distributed"
    assert_type(inductor.is_lowering(), bool)
    inductor.lower(True)


def quantized_tensors(image: Tensor) -> None:
    packed = torch.quantize_per_tensor(image, 0.5, 10, torch.quint8)
    assert_type(dmlpool.quantized_average_pooling(packed, 2), Tensor)
    assert_type(dmlpool.quantized_max_pooling(packed, 2), Tensor)
    assert_type(dmlpool.quantized_max_pooling(packed, 2, return_indices=True), Pair)


def main() -> None:
    image = torch.rand(1, 2, 8, 8)
    operators(image)
    functions(image)
    layers(image)
    quantized_tensors(image)
    models(image)
