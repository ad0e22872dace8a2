"""Every public argument with every kind of wrong value: refused in words before any work, as
tests/refusals.md says."""

import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable

import cases
import pytest
import refusals
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.backends import cpu

REQUESTS = refusals.requests()
OPERATORS = [name for name in REQUESTS if name.startswith("ops.")]
# PyTorch 2.13 warns of the first quantized tensor of a process, wherever that is.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"
)


def refused(kind, message, call):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_a_wrong_value_is_a_value_error_and_pytorchs_runtime_error():
    """So code that was written for torch.nn catches it. Each ValueError of the page is one."""
    assert issubclass(dmlpool.ArgumentError, ValueError)
    assert issubclass(dmlpool.ArgumentError, RuntimeError)


DIRECTMLS = {
    **{"kernel_size": "window_size", "stride": "strides", "dilation": "dilations"},
    **{"padding": "start_padding and end_padding", "count_include_pad": "include_padding"},
    "norm_type": "p",
}
PYTORCHS = {name: each for each, names in DIRECTMLS.items() for name in names.split(" and ")}


def test_names_of_the_others_are_answered_by_ones_own():
    """E8: functions know PyTorch's names and layers DirectML's. An error names the layer."""
    tried = 0
    for path, function, right, _ in refusals.rows():
        name, accepted = path.rpartition(".")[2], inspect.signature(function).parameters
        for wrong, meant in (PYTORCHS if path.startswith("nn.") else DIRECTMLS).items():
            if meant.split(" ")[0] in accepted and wrong not in accepted:
                tried += 1
                message = f"{name} has no argument {wrong}: did you mean {meant}?"
                refused(TypeError, message, functools.partial(function, **right, **{wrong: 2}))
    assert tried > 200


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: nn.LPPool1d(), r"LPPool1d.__init__\(\) missing"),
        (lambda: nn.AvgPool3d(2, window=3), "unexpected keyword argument 'window'"),
        (
            lambda: nn.MaxPool2d(kernel=2),
            "MaxPool2d has no argument kernel: did you mean kernel_size",
        ),
        (lambda: dmlpool.max_pooling(None, size=2), "argument size: did you mean window_size"),
        (lambda: nn.AvgPool2d(2, mask=True), r"called: layer\(input, mask=mask\)$"),
        (
            lambda: nn.MaxPool2d(torch.tensor(2.5), 2),
            r"got tensor\(2.5.*\) of type Tensor: a layer is built before it is called",
        ),
        (
            # torch.nn.functional.pad has the start and the end beside one another.
            lambda: nn.MaxPool1d(3, padding=(32, 0)),
            r"^padding must be one int or one pair \(\(start, end\),\), got \(32, 0\): to pad 32 "
            r"at the start and 0 at the end write padding=\(\(32, 0\),\)$",
        ),
    ],
)
def test_a_mistake_is_told_what_was_meant(call, told):
    """G4 and G5, in a layer's constructor."""
    with pytest.raises((TypeError, ValueError), match=told):
        call()


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        (dmlpool, "MaxPool2d", "nn.MaxPool2d"),
        (dmlpool, "max_pool2d", "nn.functional.max_pool2d"),
        (dmlpool, "convert", "nn.convert"),
        (dmlpool, "avg_pooling", "average_pooling"),
        (dmlpool, "maxpooling", "max_pooling"),
        (nn, "max_pooling", "max_pooling"),
        (nn, "GlobalAvgPool2d", "nn.AdaptiveAvgPool2d(1)"),
        (nn, "GlobalMaxPool3d", "nn.AdaptiveMaxPool3d(1)"),
        (nn, "MinPool", "nn.MinPool1d, torch_dmlpool.nn.MinPool2d, torch_dmlpool.nn.MinPool3d"),
    ],
)
def test_a_name_that_is_elsewhere_is_said_to_be_there(module, name, meant):
    missing = f"module '{module.__name__}' has no attribute '{name}'"
    message = f"{missing}: did you mean torch_dmlpool.{meant}?"
    refused(AttributeError, message, lambda: getattr(module, name))
    assert not hasattr(module, "something_else")


def test_completion_shows_public_names_alone():
    for module in (dmlpool, nn, nn.functional):
        assert dir(module) == sorted(module.__all__)


def test_errors_name_no_class_that_users_do_not_know():
    with pytest.raises(
        TypeError, match=r"^forward\(\) got an unexpected keyword argument 'indices'"
    ):
        nn.MaxPool2d(2)(torch.ones(1, 1, 4, 4), indices=True)


def test_a_report_that_is_called_says_where_the_model_is():
    """``model = convert(model)`` is the first mistake of everybody."""
    model = nn.convert(torch.nn.Sequential(torch.nn.MaxPool2d(2)))
    refused(
        TypeError,
        "convert changed the model in place, and returned a report: call report.model",
        lambda: model(torch.ones(1, 1, 4, 4)),
    )


OF_VALUES = re.compile(
    "an index|offsets|a channel|a tensor of 0$|a tensor$|a quantized tensor|a nested"
)
"""What a tensor without data has nothing to be refused for, or PyTorch has none of."""


@pytest.mark.parametrize("name", [*refusals.OF_PLAIN_TENSORS, *OPERATORS])
def test_tensors_without_data_are_refused_alike(name):
    """G1, G5 and G8: the fake tensors of a compiler know as much as real ones, but for values."""
    mode = FakeTensorMode()
    for request in REQUESTS[name]:
        if not OF_VALUES.match(request.wrong):
            arguments = {
                key: mode.from_tensor(value) if isinstance(value, Tensor) else value
                for key, value in request.call.keywords.items()
            }
            fake = request._replace(call=functools.partial(request.call.func, **arguments))
            expected = refusals.refusal(request)
            with mode:
                assert refusals.refusal(fake) == expected


@cases.each("name", OPERATORS, ["ops.gather_positions", OPERATORS[-1]])
def test_graphs_refuse_operators_called_by_name(name):
    """While they are compiled, where values of scales are not known."""
    for request in REQUESTS[name]:
        if not OF_VALUES.match(request.wrong):
            torch._dynamo.reset()
            compiled = torch.compile(request.call.func, backend="eager", fullgraph=True)
            with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                compiled(**request.call.keywords)
            assert request.wrong != "1e+39" or "finite and above 0 in float32" in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.int32, 2**31), (torch.uint32, 2**32 - 1)], ids=["int32", "uint32"]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_index_types_that_cannot_number_the_input(device, dtype, most):
    """M4: refused before any work, on an input that could never be computed here; one element less
    is accepted."""
    pool = functools.partial(dmlpool.max_pooling, return_indices=True, index_dtype=dtype)
    for elements in (2**34, most + 1):
        input = torch.zeros((), device=device, dtype=torch.uint8).expand(1, 1, elements)
        message = f"index_dtype {str(dtype)[6:]} numbers at most {most} elements, got {elements}"
        refused(ValueError, message, functools.partial(pool, input, 2))
    if device == "meta":
        values, indices = pool(input[..., :most], 2, 2)
        assert values.shape[-1] == indices.shape[-1] == most // 2


def test_windows_whose_winners_no_int32_numbers():
    """M6: more than 2**31 taps are refused where winners are numbered, by every function."""
    input, size, padding = (
        torch.empty(1, 1, 1, 1, device="meta"),
        (2**16, 2**15 + 1),
        (65535, 2**15),
    )
    named, winners = (input, size, 1, padding), {"return_indices": True}
    pairs = tuple((each, 0) for each in padding)
    lists = (list(size), [1, 1], list(padding), [0, 0], [1, 1], False)
    calls: dict[str, list[Callable[[], object]]] = {
        "window_size": [
            functools.partial(dmlpool.max_pooling, *named, **winners),
            functools.partial(dmlpool.max_pooling_grad, input, *named),
            functools.partial(
                dmlpool.max_pooling, torch.zeros(1, 1, 1, 1).requires_grad_(), *named[1:]
            ),
            functools.partial(torch.ops.dmlpool.max_pooling_with_taps, input, *lists),
        ],
        "kernel_size": [
            functools.partial(dmlpool.nn.functional.min_pool2d, input, size, 1, pairs, **winners)
        ],
    }
    assert dmlpool.max_pooling(*named).shape == input.shape
    for name, listed in calls.items():
        for call in listed:
            limit = f"{name} must be at most {2**31} taps in all where winners are numbered"
            refused(ValueError, f"{limit}, got {2**31 + 2**16}", call)


def test_every_public_function_and_layer_is_in_the_table():
    """And every argument of each, but what takes models or is ignored as PyTorch ignores it."""
    public = {
        name: getattr(dmlpool, name)
        for name in dmlpool.__all__
        if name not in ("ArgumentError", "SlowBackendWarning", "Window", "__version__", "nn")
    }
    others = {"Conversion", "convert", "functional", "integer_pooling", "pooling_quantizer"}
    others |= {"rerouted", "reverted"}
    for module in (nn, nn.functional):
        prefix = module.__name__.removeprefix("torch_dmlpool.")
        public |= {f"{prefix}.{name}": getattr(module, name) for name in {*module.__all__} - others}
    del public["morphology"]  # a module, in a test of its own
    assert {*public, *OPERATORS} == set(REQUESTS)
    for name, function in public.items():
        if "1d" in name or "3d" in name:
            continue
        arguments = set(inspect.signature(function).parameters)
        if name.endswith("with_indices"):
            arguments.remove("return_indices")
        assert arguments <= {request.argument for request in REQUESTS[name]}, name


@pytest.mark.usefixtures("either_backend")
def test_refusals_are_those_of_the_page():
    """G5, G6, G8, A5, M4, Q3 and Q4: a TypeError or a ValueError which names the argument or what
    it leaves.

    Word for word those of tests/refusals.md, which python tests/refusals.py writes; what is right
    is accepted.
    """
    for call in refusals.right_requests():
        call()
    found = refusals.collected()
    for refused, names in found.items():
        # A scale that requires a gradient is right in every other respect.
        assert (
            refused.kind in ("TypeError", "ValueError") or "requires a gradient" in refused.wrong
        ), refused
        named = re.match(r"(?:\w+pool\dd: )?(the \w+|\w+)", refused.message)
        subjects = {"the window", "the input", "the output"}
        for request in itertools.chain(*(REQUESTS[name] for name in names)):
            subjects |= {request.argument, *request.call.keywords}
        assert named is not None, refused
        assert named[1] in subjects or refused.kind == "RuntimeError", refused
    assert refusals.PAGE.read_text() == refusals.page(found), (
        "run python tests/refusals.py and read what has changed"
    )


# What the reference and ATen compute with (refusals of scales and indices look at them by other
# operations), and what the compiled library is called by.
WORKING = re.compile(
    r"aten::.*(pool|maximum|amax|mean|sum|add|pow|scatter|gather|div|quantize_per)|"
    r"dmlpool_(?!max_unpooling)"
)


def operations(calls):
    """PyTorch's operations and the library's functions that run while something is called and
    refused or not."""
    called: set[str] = set()

    class Recorded:
        def __getattr__(self, name):
            called.add(name)
            return getattr(library, name)

    library = cpu.library
    with pytest.MonkeyPatch.context() as patch, torch.autograd.profiler.profile() as profile:
        if library is not None:
            patch.setattr(cpu, "library", Recorded())
        for call in calls:
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                call()
    return {event.name for event in profile.function_events} | called


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter computes outside of PyTorch"
)
def test_no_wrong_input_reaches_a_kernel():
    """Nothing that pools runs, by what PyTorch's profiler and the compiled library see. The
    library's max_unpooling is left out: it finds wrong indices itself, before it writes any
    element, which tests/backends/test_cpu.py proves."""
    right = operations(refusals.right_requests())
    working = {name for name in right if WORKING.match(name)}
    assert len(working) > 5
    wrong = operations([request.call for requests in REQUESTS.values() for request in requests])
    assert not wrong & working
