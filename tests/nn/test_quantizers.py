"""pooling_quantizer: quantizers see this package's pools as torch.nn's; and what torchao's make of
them, where it is installed."""

import importlib.util
import warnings
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch.export import export
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import integer_pooling, pooling_quantizer

aten = torch.ops.aten
ANNOTATION = "quantization_annotation"


class Quantizer:
    """Annotates what it knows, by the operator and by the layer that a node comes from."""

    OPERATORS = (aten.max_pool2d.default, aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default)

    def __init__(self):
        self.seen: list[Any] = []
        self.adaptive: list[Any] = []

    def annotate(self, model):
        for node in model.graph.nodes:
            if node.target in self.OPERATORS:
                node.meta[ANNOTATION] = node.target
                self.seen.append(node.target)
        found = get_source_partitions(model.graph, [torch.nn.AdaptiveAvgPool2d])
        self.adaptive += [
            partition.output_nodes[0].target for each in found.values() for partition in each
        ]
        return model


class Network(torch.nn.Module):
    """Every kind of pool that quantizers know."""

    def __init__(self, pools):
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 8, 8)
        convolutions = [torch.nn.Conv2d(width, 8, 3, padding=1) for width in widths]
        self.convolutions = torch.nn.ModuleList(convolutions)
        # Quantizers look for layers: a call of relu() would be none.
        self.activations = torch.nn.ModuleList([torch.nn.ReLU() for _ in widths])
        self.normalized = torch.nn.BatchNorm2d(8)
        self.first, self.second = pools.MaxPool2d(3, 2, 1), pools.AvgPool2d(2)
        self.third, self.last = pools.MaxPool2d(2), pools.AdaptiveAvgPool2d(1)

    def forward(self, input):
        one, two, three = self.convolutions
        first, second, third = self.activations
        features = self.first(first(self.normalized(one(input))))
        features = self.second(second(two(features)))
        return self.last(self.third(self.third(third(three(features))))).flatten(1)


EXAMPLE = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def seen(pools):
    module = export(Network(pools).eval(), (EXAMPLE,)).module()
    quantizer = Quantizer()
    pooling_quantizer(quantizer).annotate(module)
    return quantizer, module


def test_a_quantizer_sees_what_it_sees_of_pytorchs_layers():
    ours, module = seen(dmlpool.nn)
    theirs, _ = seen(torch.nn)
    assert len(theirs.seen) == 5
    assert ours.seen == theirs.seen
    assert ours.adaptive == [aten.adaptive_avg_pool2d.default]
    if torch.torch_version.TorchVersion(torch.__version__) >= "2.12":  # 2.11 finds no such layer
        assert theirs.adaptive == ours.adaptive
    annotated = [node for node in module.graph.nodes if ANNOTATION in node.meta]
    operators = torch.ops.dmlpool
    average, maximum = operators.average_pooling.default, operators.max_pooling.default
    assert [node.target for node in annotated] == [maximum, average, maximum, maximum, average]
    assert not [node for node in annotated if "source_fn_stack" in node.meta]
    torch.testing.assert_close(module(EXAMPLE), Network(torch.nn).eval()(EXAMPLE))


IMAGE = (2, 3, 8, 8)
POOLS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "one dimension": (dmlpool.nn.AvgPool1d(2), (2, 3, 8), aten.avg_pool2d.default),
    "three dimensions": (dmlpool.nn.MaxPool3d(2), (2, 3, 4, 4, 4), aten.max_pool2d.default),
    "uneven bins": (dmlpool.nn.AdaptiveAvgPool2d(3), IMAGE, aten.adaptive_avg_pool2d.default),
    "indices": (dmlpool.nn.MaxPool2d(2, return_indices=True), IMAGE, None),
    "a norm": (dmlpool.nn.LPPool2d(2, 2), IMAGE, None),
    "minima": (dmlpool.nn.MinPool2d(2), IMAGE, aten.max_pool2d.default),
}


@pytest.mark.parametrize("pool", POOLS)
def test_what_other_pools_are_seen_as(pool):
    layer, sizes, target = POOLS[pool]
    module = export(layer, (torch.rand(sizes),)).module()
    quantizer = Quantizer()
    pooling_quantizer(quantizer).annotate(module)
    assert quantizer.seen == ([] if target is None else [target])


def test_the_quantizer_that_is_wrapped_stays_as_it_is():
    quantizer = Quantizer()
    pooling_quantizer(quantizer)
    quantizer.annotate(export(Network(dmlpool.nn).eval(), (EXAMPLE,)).module())
    assert quantizer.seen == []


def test_an_error_leaves_the_graph_as_it_was():
    class Failing(Quantizer):
        def annotate(self, model):
            super().annotate(model)
            raise RuntimeError("no")

    module = export(Network(dmlpool.nn).eval(), (EXAMPLE,)).module()
    before = [node.target for node in module.graph.nodes]
    with pytest.raises(RuntimeError, match="no"):
        pooling_quantizer(Failing()).annotate(module)
    assert [node.target for node in module.graph.nodes] == before
    assert not [node for node in module.graph.nodes if "source_fn_stack" in node.meta]


@pytest.mark.parametrize("value", [None, "x86", torch.nn.MaxPool2d(2), Quantizer.annotate])
def test_not_a_quantizer(value):
    with pytest.raises(TypeError, match="quantizer must be a quantizer of torchao"):
        pooling_quantizer(value)


has_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)


def quantized(pools, is_qat):
    """The network as torchao quantizes it, after three steps of training or one calibration."""
    from torchao.quantization import pt2e
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    settings = x86.get_default_x86_inductor_quantization_config(is_qat=is_qat)
    quantizer = x86.X86InductorQuantizer().set_global(settings)

    model = Network(pools).train(is_qat)
    exported = export(model, (EXAMPLE,)).module()
    prepare = quantize_pt2e.prepare_qat_pt2e if is_qat else quantize_pt2e.prepare_pt2e
    prepared = prepare(exported, pooling_quantizer(quantizer))
    if is_qat:
        optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            prepared(EXAMPLE).square().sum().backward()
            optimizer.step()
        pt2e.move_exported_model_to_eval(prepared)
    with torch.no_grad():
        prepared(EXAMPLE)
        return export(quantize_pt2e.convert_pt2e(prepared), (EXAMPLE,))


def step(program):
    """The coarsest scale of what is quantized per tensor."""
    return max(
        node.args[1]
        for node in program.graph.nodes
        if "quantize_per_tensor" in str(node.target) and isinstance(node.args[1], float)
    )


@pytest.mark.slow
@has_torchao
@pytest.mark.parametrize("pools", [torch.nn, dmlpool.nn], ids=["torch.nn", "ours"])
@pytest.mark.parametrize("is_qat", [False, True], ids=["calibrated", "trained"])
def test_torchao(is_qat, pools):
    """Every pool that the quantizer annotates becomes one of integers, of both packages' layers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = quantized(pools, is_qat)
        report: dict[str, str] = {}
        integers = integer_pooling(program, report)
        before, after = program.module()(EXAMPLE), integers.module()(EXAMPLE)
    assert len(report) == 5
    assert all(text.startswith("replaced") for text in report.values()), report
    assert before.std() > 0
    # Averages may round to the other side, which convolutions pass on.
    assert (before - after).abs().max() <= 2 * step(program)
