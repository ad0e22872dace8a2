"""Modules that are loaded again, as by IPython's autoreload after an edit, leave calls working."""

import subprocess
from collections.abc import Callable

import pytest

PROGRAM = """
import gc, importlib, sys, types, warnings
warnings.simplefilter("ignore")
import torch, torch_dmlpool as dmlpool
import torch_dmlpool.decompositions, torch_dmlpool.distributed

layer, maxima = dmlpool.nn.MaxPool2d(2), dmlpool.max_pooling
average = dmlpool.nn.functional.avg_pool2d
bytes = torch.quantize_per_tensor(torch.rand(2, 3, 6, 6), 0.1, 3, torch.quint8)
x = torch.rand(2, 3, 6, 6, requires_grad=True)
mask = torch.rand(2, 1, 6, 6) < 0.5

def calls():
    values, places = dmlpool.nn.MaxPool2d(2, return_indices=True)(x)
    results = [layer(x), maxima(x, 2), average(x, 2), dmlpool.nn.MaxUnpool2d(2)(values, places)]
    for pool in (maxima, dmlpool.min_pooling, dmlpool.average_pooling, dmlpool.lp_pooling):
        results += [pool(x, 2), pool(x, 2, mask=mask)]
    for pool in (dmlpool.adaptive_max_pooling, dmlpool.adaptive_average_pooling):
        results += [pool(x, 4), pool(x, 4, mask=mask)]
    torch.autograd.grad(sum(each.sum() for each in results), x)
    model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    assert dmlpool.nn.convert(model).replaced and type(model[0]) is not torch.nn.MaxPool2d
    torch.vmap(lambda each: dmlpool.average_pooling(each, 2))(x.detach()[:, None])
    torch.func.grad(lambda each: maxima(each, 2).sum())(x.detach())
    torch.ops.dmlpool.max_pooling(x, *dmlpool.Window.directml(2, 2).arguments)
    assert len(torch_dmlpool.decompositions.decompositions()) > 20
    assert isinstance(dmlpool.Window.directml(2, 2), type(window))
    assert layer(bytes).is_quantized and average(bytes, 2).is_quantized
    torch.fx.symbolic_trace(lambda each: average(each, 2))(x)
    for pool, word in ((maxima, "window_size"), (average, "kernel_size")):
        try:
            pool(x, 9)
        except RuntimeError as error:
            assert word in str(error), error

def replace(old, new):
    if isinstance(old, type) and isinstance(new, type):
        for name in [*vars(old), *vars(new)]:
            before, after = getattr(old, name, None), getattr(new, name, None)
            if before is not after and not replace(before, after):
                try:
                    setattr(old, name, after)
                except (AttributeError, TypeError):
                    pass
        for each in gc.get_referrers(old):
            if type(each) is old:
                object.__setattr__(each, "__class__", new)
    elif isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        if len(old.__code__.co_freevars) == len(new.__code__.co_freevars):
            old.__code__, old.__defaults__ = new.__code__, new.__defaults__
            old.__kwdefaults__, old.__dict__ = new.__kwdefaults__, new.__dict__
    else:
        return False
    return True

def autoreload(module):  # what IPython does
    before = dict(vars(module))
    vars(module).clear()
    vars(module).update(__name__=before["__name__"], __loader__=before["__loader__"])
    importlib.reload(module)
    for name, old in before.items():
        if getattr(old, "__module__", None) == module.__name__ and name in vars(module):
            replace(old, vars(module)[name])

window = dmlpool.Window.directml(2, 3)
names = sorted(name for name in sys.modules if name.split(".")[0] == "torch_dmlpool")
for name in names:
    try:
        {"reload": importlib.reload, "autoreload": autoreload}[sys.argv[1]](sys.modules[name])
        calls()
    except BaseException:
        print(name)
        raise
print(len(names), "modules")
"""


@pytest.mark.parametrize("way", ["reload", "autoreload"])
def test_any_module_may_be_loaded_again(
    way: str, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """One after the other: operators are registered once, and classes stay what they were."""
    assert int(python("-c", PROGRAM, way).stdout.split()[0]) > 60
