"""torch_dmlpool.nn.convert: whole models before and after, what becomes of a layer, what is left
and why."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import samples
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.nn import conversion, convert, layers
from torch_dmlpool.timing import Times


class Network(torch.nn.Module):
    """Padded maxima with ceil_mode, a branch that pools with stride 1, averages that do not count
    their padding, and maxima with indices, by which it unpools."""

    def __init__(self):
        super().__init__()
        self.first, self.normalized = torch.nn.Conv2d(3, 6, 7, 2), torch.nn.BatchNorm2d(6)
        self.pool = torch.nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        pooled = torch.nn.MaxPool2d(3, 1, 1, ceil_mode=True), torch.nn.Conv2d(6, 2, 1)
        branches = torch.nn.Conv2d(6, 3, 1), torch.nn.Sequential(*pooled)
        self.branches = torch.nn.ModuleList(branches)
        self.average = torch.nn.AvgPool2d(2, 2, 1, ceil_mode=True, count_include_pad=False)
        self.winners = torch.nn.MaxPool2d(2, return_indices=True)
        self.unpool = torch.nn.MaxUnpool2d(2)

    def forward(self, input):
        input = self.pool(self.normalized(self.first(input)).relu_())
        input = torch.cat([branch(input) for branch in self.branches], 1)
        values, indices = self.winners(input)
        return torch.cat(
            [self.average(input), self.unpool(values, indices, input.shape)[..., :5, :5]], 1
        )


def image(device, dtype=torch.float64):
    return samples.normal(2, 3, 35, 38, dtype=dtype).to(device)


def test_a_converted_network_gives_the_same(device):
    """Outputs and gradients of everything in training, and the state_dict loads both ways."""
    torch.manual_seed(0)
    before, input = Network().to(device, torch.float64).train(), image(device)
    after = convert(before, inplace=False)
    maxima = dict.fromkeys(("pool", "branches.1.0", "winners"), "MaxPool2d")
    assert after.replaced == {**maxima, "average": "AvgPool2d", "unpool": "MaxUnpool2d"}

    def assert_close(actual, expected):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)

    models = after.model, before
    assert_close(*(samples.results(each, input, list(each.parameters())) for each in models))
    # Running statistics of the batch normalisation were counted equally; each loads the other's.
    assert_close(*(each.state_dict() for each in models))
    for source, target in (models, models[::-1]):
        assert str(target.load_state_dict(source.state_dict())) == "<All keys matched successfully>"
    assert_close(*(each.eval()(input) for each in models))


class Recorder(torch.nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.pool, self.again = pool, torch.nn.ModuleDict({"inside": pool})

    def forward(self, input):
        return self.pool(input)


def test_a_layer_stays_the_object_that_it_was(device):
    """Hooks, training state, attributes of the user's own, sharing, and all that refers to it."""
    pool, calls = torch.nn.MaxPool2d((3, 2), 2, padding=(1, 0), return_indices=True), []
    pool.register_forward_hook(lambda *_: calls.append("after"))
    pool.register_forward_pre_hook(lambda *_: calls.append("before"))
    pool.note = "mine"
    pool.eval()
    model = Recorder(pool)
    report = convert(model)
    assert report.model is model
    assert model.pool is pool is model.again["inside"]
    assert type(pool) is layers.MaxPool2d
    assert (pool.training, pool.note, pool.return_indices) == (False, "mine", True)
    assert report.replaced == {"pool": "MaxPool2d", "again.inside": "MaxPool2d"}
    found = model(image(device))
    assert calls == ["before", "after"]
    expected = torch.nn.MaxPool2d((3, 2), 2, padding=(1, 0), return_indices=True)(image(device))
    assert all(map(torch.equal, found, expected))


def test_converting_twice_changes_nothing():
    model = torch.nn.Sequential(torch.nn.MaxPool1d(2), dmlpool.nn.MaxPool2d(2, padding="same"))
    assert convert(model).replaced == {"0": "MaxPool1d"}
    assert convert(model) == conversion.Conversion(model, {}, {}, {})


class OwnForward(torch.nn.MaxPool2d):
    def forward(self, input):
        return -super().forward(-input)


class OwnName(torch.nn.AvgPool2d):
    def __init__(self):
        super().__init__(2)


class OwnBase(torch.nn.modules.pooling._MaxPoolNd):
    def forward(self, input):
        return input


def with_attribute(layer, name, value):
    setattr(layer, name, value)
    return layer


LEFT: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "a forward of its own": (
        lambda: OwnForward(2),
        "OwnForward is a subclass of MaxPool2d with a forward of its own",
    ),
    "a subclass": (OwnName, "OwnName is a subclass of AvgPool2d: subclasses=True replaces it"),
    "an overridden forward": (
        lambda: with_attribute(torch.nn.MaxPool2d(2), "forward", torch.nn.Identity().forward),
        "its forward was overridden",
    ),
    "no counterpart": (
        lambda: torch.nn.FractionalMaxPool2d(2, output_size=3),
        "torch_dmlpool.nn has no FractionalMaxPool2d",
    ),
    "a base class of torch's": (
        lambda: OwnBase(2),
        "OwnBase is a subclass of _MaxPoolNd with a forward of its own",
    ),
    "norms of signed numbers": (
        lambda: torch.nn.LPPool2d(3, 2),
        "PyTorch's norms differ with ceil_mode, and for negative elements unless norm_type is even",
    ),
    "unpooling of shared elements": (
        lambda: torch.nn.MaxUnpool2d(3, (3, 2)),
        "windows that overlap: PyTorch gives the gradient to all elements of one index, not to "
        "the last alone",
    ),
    "an argument that torch would take": (
        lambda: torch.nn.MaxPool2d(2, ceil_mode=1),
        "ceil_mode must be a bool, got 1 of type int",
    ),
    "an attribute that was changed": (
        lambda: with_attribute(torch.nn.AvgPool3d(2), "stride", 0),
        "stride must be at least 1, got 0 in spatial dimension D (stride=0)",
    ),
}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool"])
def test_sizes_of_numpy_convert(kind, rank, device):
    """In tuples and arrays. The converted layer holds Python's ints, and gives its own back."""
    for sizes in (tuple(np.full(rank, 2, np.int16)), np.full(rank, 2)):
        if kind == "AdaptiveMaxPool" and isinstance(sizes, np.ndarray):
            continue  # PyTorch takes no array there
        layer = getattr(torch.nn, f"{kind}{rank}d")(sizes)
        input = samples.normal(1, 2, *[6] * rank, dtype=torch.float64).to(device)
        name = "output_size" if "Adaptive" in kind else "kernel_size"
        before = vars(layer)[name]
        report = convert(torch.nn.Sequential(layer))
        assert report.replaced == {"0": f"{kind}{rank}d"}
        wanted = getattr(torch.nn, f"{kind}{rank}d")(2)(input)
        torch.testing.assert_close(report.model(input), wanted)
        report.revert()
        assert vars(layer)[name] is before


class Named(torch.nn.MaxPool2d):
    """Adds nothing."""


class Slotted(torch.nn.AvgPool2d):
    __slots__ = ("own",)


def test_subclasses_without_a_forward_convert_if_asked_for():
    model = torch.nn.Sequential(Named(2), OwnName(), OwnForward(2), OwnBase(2), Slotted(2))
    assert not convert(model, inplace=False).replaced
    input = samples.normal(1, 2, 9, 9)
    expected, before = model[:2](input), [type(layer) for layer in model]
    report = convert(model, subclasses=True)
    assert report.replaced == {"0": "Named", "1": "OwnName"}
    assert [type(layer).__module__ for layer in model[:2]] == ["torch_dmlpool.nn"] * 2
    torch.testing.assert_close(model[:2](input), expected)
    report.revert()
    assert [type(layer) for layer in model] == before


def test_a_conversion_that_fails_changes_nothing(monkeypatch):
    """All effects are worked out before the first class changes."""
    model = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.AvgPool2d(2))
    described = iter(["first"])
    monkeypatch.setattr(conversion, "_effect", lambda _: next(described))
    with pytest.raises(StopIteration):
        convert(model)
    assert [type(layer) for layer in model] == [torch.nn.MaxPool2d, torch.nn.AvgPool2d]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_timms_maxima_with_ceil_mode_stay_tensors(size, stride):
    """Their constructor takes ceil_mode for return_indices, which their forward does not read."""
    forward = torch.nn.Module.forward
    attributes = {"__module__": "timm.layers.pool2d_same", "forward": forward}
    same = type("MaxPool2dSame", (torch.nn.MaxPool2d,), attributes)
    layer = same(size, stride, 0, 1, True)
    assert layer.return_indices
    input = samples.normal(2, 3, 13, 10)
    found = convert(torch.nn.Sequential(layer)).model(input)
    expected = dmlpool.nn.MaxPool2d(size, stride, padding="same")(input)
    assert isinstance(found, Tensor)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_and_why(name):
    build, reason = LEFT[name]
    model = torch.nn.Sequential(build(), torch.nn.ReLU())
    kind = type(model[0])
    report = convert(model)
    assert type(model[0]) is kind
    assert (report.replaced, report.left) == ({}, {"0": reason})
    assert str(report) == f"replaced 0, left 1\n  left      0  {reason}"


THEIRS = "per output, not 8, and no input for itself"
EFFECTS = {
    f"training keeps 1 byte {THEIRS}": torch.nn.MaxPool2d(15),
    f"training keeps 2 bytes {THEIRS}": torch.nn.MaxPool2d(16),
    f"training keeps at most 4 bytes {THEIRS}": torch.nn.AdaptiveMaxPool1d(1),
    "training keeps no input for itself, as torch.nn does": torch.nn.AvgPool3d(2),
    "the same memory as torch.nn": torch.nn.AdaptiveAvgPool2d((1, 1)),
    "where a norm is 0, its gradient is 0 and not NaN": torch.nn.LPPool1d(2, 2),
    "the same result run after run, on a GPU too": torch.nn.MaxUnpool2d(2),
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_report_says_what_is_gained(effect):
    report = convert(torch.nn.Sequential(EFFECTS[effect]), inplace=False)
    assert report.effects == {"0": effect}
    assert str(report).endswith(f": {effect}")


def test_what_torchscript_has_compiled_is_left():
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit.trace"):
        scripted = torch.jit.trace(
            torch.nn.Sequential(torch.nn.MaxPool2d(2)), torch.ones(1, 1, 4, 4)
        )
    assert convert(scripted).left == {"0": "compiled by TorchScript from MaxPool2d"}


REFUSED: dict[str, dict[str, Any]] = {
    r"model must be a torch\.nn\.Module, got list": {"model": [torch.nn.MaxPool2d(2)]},
    "inplace must be a bool, got 1 of type int": {"inplace": 1},
    r"example_inputs must be a tuple such as \(x,\), got Tensor; a dict has them by name": {
        "example_inputs": torch.rand(1, 1, 4, 4)
    },
    "training must be False without example_inputs, which are measured": {"training": True},
}


@pytest.mark.parametrize("error", REFUSED)
def test_refusals(error):
    """Before anything is replaced."""
    arguments = {"model": torch.nn.MaxPool2d(2), **REFUSED[error]}
    with pytest.raises((TypeError, ValueError), match=f"^{error}$"):
        convert(**arguments)
    assert type(arguments["model"]) in (torch.nn.MaxPool2d, list)


def pad_same(input, layer, dilation=(1, 1), value=0.0):
    """TensorFlow's "same": ``ceil(size / stride)`` windows, the odd element at the end."""
    padding: list[int] = []
    window = layer.kernel_size, layer.stride, dilation
    for length, taps, step, gap in zip(input.shape[-2:], *window, strict=True):
        total = max((math.ceil(length / step) - 1) * step + (taps - 1) * gap + 1 - length, 0)
        padding = [total // 2, total - total // 2, *padding]
    return functional.pad(input, padding, value=value)


class AvgPool2dSame(torch.nn.AvgPool2d):
    """timm's: the padding is part of the input when it is averaged, whatever ``count_include_pad``
    says."""

    def forward(self, input):
        return super().forward(pad_same(input, self))


class MaxPool2dSame(torch.nn.MaxPool2d):
    """timm's."""

    def forward(self, input):
        return super().forward(pad_same(input, self, self.dilation, -math.inf))


for layer in (AvgPool2dSame, MaxPool2dSame):
    layer.__module__ = "timm.layers.pool2d_same"  # what conversion knows them by


@pytest.mark.parametrize(("size", "window", "stride"), [(8, (2, 5), (4, 2)), (13, (2, 2), (1, 1))])
def test_timms_same_padding(size, window, stride, device):
    """E8: sizes, numbers and gradients, strides above 1 and above the window, dilation, odd and
    even sizes."""
    input = samples.normal(2, 3, size, size + 1, dtype=torch.float64).to(device)
    for pool in (
        MaxPool2dSame(window, stride, (0, 0), (2, 1)),
        AvgPool2dSame(window, stride, (0, 0), False, False),
        AvgPool2dSame(window, stride, (0, 0), True, True),
    ):
        expected, name = samples.results(pool, input), type(pool).__name__
        assert convert(pool).replaced == {"": name}
        assert type(pool) is getattr(layers, name.removesuffix("Same"))
        torch.testing.assert_close(samples.results(pool, input), expected)


class Calling(torch.nn.Module):
    """A model that calls functions and has no layers."""

    def forward(self, input):
        return functional.max_pool2d(input, 2) + functional.adaptive_avg_pool2d(input, 1)


def test_a_model_that_calls_functions_is_pointed_at_rerouted():
    report = convert(torch.nn.Sequential(Calling(), torch.nn.ReLU()))
    assert report.functions == ["adaptive_avg_pool2d", "max_pool2d"]
    assert str(report) == (
        "replaced 0, left 0\n  its code calls adaptive_avg_pool2d, max_pool2d: run it inside "
        "torch_dmlpool.nn.rerouted() to replace calls"
    )
    assert "rerouted" not in str(convert(torch.nn.Sequential(torch.nn.MaxPool2d(2))))


def test_reverting_puts_everything_back():
    """Classes, attributes and results, in the model itself and once."""
    model = torch.nn.Sequential(
        torch.nn.MaxPool2d(2), AvgPool2dSame(2), torch.nn.AdaptiveAvgPool2d(1)
    )
    before = [(type(layer), dict(vars(layer))) for layer in model]
    report = convert(model)
    assert [type(layer).__module__ for layer in model] == ["torch_dmlpool.nn"] * 3
    assert report.revert() is model
    assert [(type(layer), dict(vars(layer))) for layer in model] == before
    model[0] = convert(torch.nn.MaxPool2d(2)).model
    report.revert()
    assert type(model[0]) is layers.MaxPool2d


@pytest.fixture
def times(monkeypatch):
    """Times that are made up: ours is half as fast in averages, twice as fast in maxima."""
    asked: list[tuple[str, str]] = []

    def in_turn(calls, device, seconds):
        results = {name: call() for name, call in calls.items()}
        kinds = {name: type(result).__name__ for name, result in results.items()}
        first, second = (
            found[0] if isinstance(found, tuple) else found for found in results.values()
        )
        torch.testing.assert_close(first, second)
        is_average = bool((first % 1).any())  # of whole numbers
        asked.append((device.type, kinds["ours"]))
        ours = 2e-3 if is_average else 5e-4
        return {"ours": Times(ours, ours, ours), "theirs": Times(1e-3, 1e-3, 1e-3)}

    monkeypatch.setattr(timing, "in_turn", in_turn)
    return asked


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_layers_that_would_be_slower_stay(training, times, device):
    """Each layer's own calls are measured, the same ones once, and the model is what it was."""
    shared = torch.nn.MaxPool2d(2)
    model = torch.nn.Sequential(
        torch.nn.Identity(), shared, shared, torch.nn.AdaptiveMaxPool2d(4), torch.nn.AvgPool2d(3, 1)
    ).to(device)
    input = torch.arange(2 * 2 * 32 * 32.0).square().remainder(97).reshape(2, 2, 32, 32).to(device)
    model[3].register_forward_hook(lambda *_: None)
    spare = torch.nn.MaxPool2d(3)
    model.spare = spare  # which forward does not reach
    model.forward = lambda input: torch.nn.Sequential(*list(model)[:5])(input)  # type: ignore
    report = convert(model, example_inputs=(input,), training=training)
    assert set(report.replaced) == {"1", "2", "3", "spare"}
    assert type(shared) is layers.MaxPool2d
    assert type(spare) is layers.MaxPool2d
    assert report.left == {"4": "it would be slower"}
    assert type(model[4]) is torch.nn.AvgPool2d
    assert "it would be slower; 2 ms here, 1 ms in torch.nn" in str(report)
    assert report.times["1"] == (1e-3, 2e-3)  # two calls, of unlike sizes
    assert "spare" not in report.times
    assert len(times) == 4
    assert all(each.training for each in model.modules())
    assert len(model[3]._forward_hooks) == 1
    assert times[0][1] == ("tuple" if training else "Tensor")


def test_measuring_changes_no_statistics():
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.MaxPool2d(2))
    state = {name: entry.clone() for name, entry in model.state_dict().items()}
    report = convert(model, example_inputs=(torch.rand(1, 2, 8, 8),))
    assert all(torch.equal(entry, state[name]) for name, entry in model.state_dict().items())
    assert min(report.times["1"]) > 0


@pytest.mark.parametrize("load", [None, "9 processes"])
def test_a_report_says_that_the_machine_was_busy(load, times, monkeypatch):
    """2 % cannot be measured there."""
    monkeypatch.setattr(timing, "load", lambda: load)
    model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    assert convert(model, inplace=False).busy is None
    report = convert(model, example_inputs=(torch.rand(1, 2, 8, 8),))
    assert report.busy == load
    said = "  the machine was busy, so that times say little: 9 processes"
    assert (said in str(report).splitlines()) == (load is not None)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_values_are_not_measured(kind, training):
    """Every layer is converted, and the report says why it has no times."""
    where = torch.device("meta") if kind == "meta" else FakeTensorMode()
    with where:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2))
        report = convert(model, example_inputs=(torch.empty(2, 3, 8, 8),), training=training)
    assert report.replaced == {"1": "MaxPool2d"}
    assert report.times == report.left == {}
    assert report.busy is None
    assert f"no times were measured: {kind} tensors have no values" in str(report)


def test_a_whole_model_loads_with_weights_only(tmp_path):
    """After one line, as docs/conversion.md says."""
    model = convert(torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(1))).model
    torch.save(model, tmp_path / "model.pt")
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # the page of another test may have allowed ours
    try:
        with pytest.raises(pickle.UnpicklingError, match="weights_only"):
            torch.load(tmp_path / "model.pt")
    finally:
        torch.serialization.add_safe_globals(allowed)
    ours = [getattr(dmlpool.nn, name) for name in dmlpool.nn.layers.__all__]
    with torch.serialization.safe_globals([torch.nn.Sequential, *ours]):
        loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert [type(layer) for layer in loaded] == [type(layer) for layer in model]
