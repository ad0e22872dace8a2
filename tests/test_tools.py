"""Other people's tools on converted models, beside the same tool on torch.nn's layers
(docs/tools.md). What is not installed is skipped; make test-tools installs it."""

import copy
import warnings

import pytest
import samples
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGE = samples.normal(1, 3, 16, 16)


def pair():
    """A model of torch.nn's layers, and the same converted."""
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 5, 3), nn.ReLU()]
    layers += [nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)]
    theirs = nn.Sequential(*layers).eval()
    return theirs, dmlpool.nn.convert(copy.deepcopy(theirs)).model


def program(model):
    table = {**torch.export.default_decompositions(), **decompositions()}
    return torch.export.export(model, (IMAGE,)).run_decompositions(table)


def flops(model):
    with FlopCounterMode(display=False) as counter:
        model(IMAGE)
    return counter.get_total_flops()


def thop(model):
    with dmlpool.nn.reverted(model):
        return pytest.importorskip("thop").profile(copy.deepcopy(model), (IMAGE,), verbose=False)


def fvcore(model):
    count = pytest.importorskip("fvcore.nn").FlopCountAnalysis(model, IMAGE)
    return count.unsupported_ops_warnings(False).total()


def openvino(model):
    ov = pytest.importorskip("openvino")
    compiled = ov.Core().compile_model(
        ov.convert_model(model, example_input=IMAGE), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return torch.from_numpy(next(iter(compiled(IMAGE.numpy()).values())).copy())


def executorch(model):
    exir = pytest.importorskip("executorch.exir")
    exir.to_edge(program(model)).to_executorch()
    pools = ["aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default", "aten.mean.dim"]
    return [
        pools.index(str(n.target)) for n in program(model).graph.nodes if str(n.target) in pools
    ]


@pytest.mark.parametrize("tool", [flops, thop, fvcore, openvino, executorch])
def test_a_tool_does_the_same_for_a_converted_model(tool):
    theirs, ours = pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(tool(ours), tool(theirs))
