"""torch_dmlpool.nn.reverted: torch.nn's layers inside the block and ours after it (W4)."""

import copy

import pytest
import samples
import torch

from torch_dmlpool.nn import convert, layers, reverted


def model_of(*pools):
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), *pools, torch.nn.BatchNorm2d(3))


@pytest.mark.parametrize("name", layers.__all__)
def test_each_layer_has_torchs_class_for_a_while(name):
    """Where there is one; it pools like ours, and stays the object that it is."""
    layer = getattr(layers, name)(*([2, 2] if name.startswith("LP") else [2]))
    before = dict(vars(layer))
    with reverted(layer) as report:
        assert (name in dir(torch.nn)) == (type(layer) is getattr(torch.nn, name, None))
        assert report.replaced == ({"": name} if hasattr(torch.nn, name) else {})
        assert report.left == ({} if hasattr(torch.nn, name) else {"": f"torch.nn has no {name}"})
    assert type(layer) is getattr(layers, name)
    assert vars(layer) == before


@pytest.mark.parametrize("is_converted", [False, True])
def test_a_model_is_as_before_after_the_block(is_converted):
    """Names, hooks, parameters, training, what was changed inside, and layers that are shared."""
    module = torch.nn if is_converted else layers
    shared, calls = module.MaxPool2d(2), []
    model = model_of(shared, module.AvgPool2d(3, 1, 1), shared).eval()
    if is_converted:
        convert(model)
    image, names = samples.normal(1, 2, 16, 16), list(dict(model.named_modules()))
    parameters, kinds = list(model.parameters()), [type(each) for each in model.modules()]
    expected = model(image)
    shared.register_forward_hook(lambda *_: calls.append(type(shared)))
    with reverted(model) as report:
        assert list(report.replaced) == ["1", "3", "2"]
        assert not report.left
        torch.testing.assert_close(model(image), expected)
        assert calls == [torch.nn.MaxPool2d] * 2
        shared.note = "inside"
        model.train()
    assert [type(each) for each in model.modules()] == kinds
    assert list(dict(model.named_modules())) == names
    assert list(map(id, model.parameters())) == list(map(id, parameters))
    assert shared.note == "inside"
    assert shared.training
    torch.testing.assert_close(model.eval()(image), expected)
    assert calls[2:] == [layers.MaxPool2d] * 2


def test_it_nests_and_ends_after_an_exception():
    model = model_of(layers.MaxPool2d(2))

    def fail():
        with reverted(model) as inner:
            assert not inner.replaced
        assert type(model[1]) is torch.nn.MaxPool2d
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), reverted(model):
        fail()
    assert type(model[1]) is layers.MaxPool2d
    with pytest.raises(TypeError, match=r"^model must be a torch\.nn\.Module, got int$"):
        reverted(3).__enter__()


@pytest.mark.parametrize(
    ("layer", "is_replaced"),
    [
        (layers.MaxPool2d(3, 1, "same"), True),
        (layers.AvgPool2d(3, 1, ((1, 1), (0, 0))), True),
        (layers.AdaptiveMaxPool2d(None), True),
        (layers.MaxPool2d(3, 2, "same"), False),
        (layers.MaxPool2d(2, 1, ((0, 1), (0, 1))), False),
        (layers.AvgPool2d(2, dilation=2), False),
        (layers.AvgPool1d(2, divisor_override=3), False),
        (layers.LPPool2d(3, 2), False),
        (layers.MaxUnpool2d(3, 2), False),
    ],
    ids=repr,
)
def test_a_layer_that_means_something_else_stays(layer, is_replaced):
    """And has a name in the report; words and pairs of padding become numbers for a while."""
    model, before = torch.nn.ModuleDict({"pool": layer}), dict(vars(layer))
    image = samples.normal(1, 2, 7, 8)
    expected = copy.deepcopy(layer)(image) if is_replaced else None
    with reverted(model) as report:
        assert list(report.replaced if is_replaced else report.left) == ["pool"]
        assert type(layer).__module__.startswith("torch_dmlpool") != is_replaced
        if is_replaced:
            torch.testing.assert_close(layer(image), expected)
        else:
            assert report.left["pool"].endswith("means something else by its arguments")
    assert vars(layer) == before


def test_a_layer_of_another_library_gets_its_class_again():
    """timm's "same" layers, with the attributes that they had."""
    kind = type("MaxPool2dSame", (torch.nn.MaxPool2d,), {})
    kind.__module__ = "timm.layers.pool2d_same"
    model = model_of(kind(3, 2, 0))
    report = convert(model)
    with reverted(model):
        assert type(model[1]) is kind
        assert model[1].padding == 0
    assert type(model[1]) is layers.MaxPool2d
    assert model[1].padding == "same"
    report.revert()
    assert type(model[1]) is kind


class Hiding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        inner = torch.nn.Sequential(torch.nn.AvgPool2d(2))
        self.pools = [torch.nn.MaxPool2d(2), (torch.nn.ReLU(), {"inner": inner})]
        self.pools.append(self.pools)  # type: ignore[arg-type]
        self.seen = torch.nn.MaxPool2d(2)
        self.again = [self.seen]

    def forward(self, image, *, scale):
        return self.seen(image) * scale


def test_layers_in_plain_lists_are_named_with_the_way_out():
    """And arguments of the model may be given by name."""
    inputs = {"image": samples.normal(1, 2, 8, 8), "scale": 2.0}
    report = convert(Hiding(), example_inputs=inputs)
    assert list(report.times) == ["seen"]
    left = {name: why for name, why in report.left.items() if name != "seen"}
    assert list(left) == ["pools[0]", "pools[1][1]['inner'].0"]
    assert all("use torch.nn.ModuleList" in why and "rerouted()" in why for why in left.values())
