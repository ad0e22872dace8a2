"""Every derivative and transform that ATen's pools have (E1), eager."""

import functools
import math
from collections.abc import Callable

import cases
import pytest
import samples
import torch
from operators import PAIR, WINDOW, calls_of, operators
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn import functional

import torch_dmlpool as dmlpool

Function = Callable[[Tensor], Tensor]
MODES = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}


def finite(values):
    """Minus infinity, which empty windows give, as a number that numerical differentiation can
    subtract from itself."""
    return values.clamp(min=-1e6)


def functions_of(case):
    """Every differentiable operator as a function of one tensor, with that tensor's sizes."""
    found = {}
    for name, arguments in calls_of(case, torch.float64, 2).items():
        leaves = [n for n, each in enumerate(arguments) if getattr(each, "requires_grad", False)]
        if leaves:
            before, after = arguments[: leaves[-1]], arguments[leaves[-1] + 1 :]
            function = functools.partial(_called, getattr(operators, name), before, after)
            found[name] = function, arguments[leaves[-1]].shape
    given, sizes = case.arguments, (2, 2, *case.sizes)
    arriving, mask = (
        samples.distinct(2, 2, *case.output_sizes),
        samples.normal(2, 1, *case.sizes) > -0.5,
    )
    bins = tuple(size // 2 + 1 for size in case.sizes)
    # An element of 0 alone in its window is where a norm, |x|, has no derivative.
    norm = functools.partial(dmlpool.lp_pooling, **given, p=3)
    public: dict[str, Function] = {
        "average_pooling, padding not counted": lambda x: dmlpool.average_pooling(x, **given),
        "min_pooling": lambda x: -finite(-dmlpool.min_pooling(x, **given)),
        "max_pooling_grad in its input": lambda x: (
            dmlpool.max_pooling_grad(x, arriving, **given) * x.square().mean()
        ),
        "lp_pooling": lambda x: norm(x + 0.05),
        "lp_pooling, masked": lambda x: norm(x + 0.05, mask=mask),
        "adaptive_average_pooling, masked": lambda x: dmlpool.adaptive_average_pooling(
            x, bins, mask=mask
        ),
        "adaptive_max_pooling": lambda x: dmlpool.adaptive_max_pooling(x, bins),
        "adaptive_max_pooling, masked": lambda x: finite(
            dmlpool.adaptive_max_pooling(x, bins, mask=mask)
        ),
    }
    return found | {name: (function, sizes) for name, function in public.items()}


def _called(operator, before, after, x):
    return finite(samples.listed(operator(*before, x, *after))[0])


NAMES = list(functions_of(cases.case("plain")))


@cases.in_pairs(case=cases.SMALL, name=NAMES)
def test_first_derivatives(case, name):
    """E1: reverse and forward mode, batched, against numerical differentiation; windows without a
    tap included."""
    function, sizes = functions_of(case)[name]
    input = samples.distinct(*sizes).requires_grad_()
    assert gradcheck(function, input, **MODES, fast_mode=case.rank > 1)


@cases.in_pairs(case=cases.SMALL[:3], name=NAMES)
def test_second_derivatives(case, name):
    """E1: reverse over reverse and forward over reverse, batched."""
    function, sizes = functions_of(case)[name]
    input = samples.distinct(*sizes).requires_grad_()
    # bent: pooling alone has second derivatives of 0
    arguments = (lambda x: function(x).sin(), input)
    modes = {"check_batched_grad": True, "check_fwd_over_rev": True, "check_rev_over_rev": True}
    assert gradgradcheck(*arguments, **modes, fast_mode=case.rank > 1)


def scattered(values, indices, like):
    """Max unpooling as ATen does it where vmap goes too."""
    flat = torch.zeros_like(like).flatten(2)
    return flat.scatter(2, indices.flatten(2), values.flatten(2)).view(like.shape)


def masked(x):
    """A mask for any sizes, which depends on no derivative."""
    return torch.ones(x.shape[-2:], device=x.device).cumsum(-1) < 5


POOLS = {
    "masked max": (
        lambda x: dmlpool.max_pooling(x, 3, 2, mask=masked(x)),
        lambda x: functional.max_pool2d(torch.where(masked(x), x, -math.inf), 3, 2),
    ),
    "masked average": (
        lambda x: dmlpool.average_pooling(x, 3, 2, mask=masked(x)),
        lambda x: (
            functional.avg_pool2d(torch.where(masked(x), x, 0), 3, 2)
            / functional.avg_pool2d(masked(x).to(x)[None, None], 3, 2)
        ),
    ),
    "max": (lambda x: dmlpool.max_pooling(x, *WINDOW), lambda x: functional.max_pool2d(x, 3, 2, 1)),
    "max with indices": (
        lambda x: dmlpool.max_pooling(x, *WINDOW, **PAIR)[0],
        lambda x: functional.max_pool2d(x, 3, 2, 1, **PAIR)[0],
    ),
    "min": (
        lambda x: dmlpool.min_pooling(x, *WINDOW),
        lambda x: -functional.max_pool2d(-x, 3, 2, 1),
    ),
    "average": (
        lambda x: dmlpool.average_pooling(x, *WINDOW, include_padding=True),
        lambda x: functional.avg_pool2d(x, 3, 2, 1),
    ),
    "norm": (lambda x: dmlpool.lp_pooling(x, 3, 2), lambda x: functional.lp_pool2d(x, 2, 3, 2)),
    "adaptive average": (
        lambda x: dmlpool.adaptive_average_pooling(x, (3, 4)),
        lambda x: functional.adaptive_avg_pool2d(x, (3, 4)),
    ),
    "adaptive max": (
        lambda x: dmlpool.adaptive_max_pooling(x, (3, 4)),
        lambda x: functional.adaptive_max_pool2d(x, (3, 4)),
    ),
    "unpooling": (
        lambda x: dmlpool.max_unpooling(*dmlpool.max_pooling(x, 2, 2, **PAIR), x.shape),
        lambda x: scattered(*functional.max_pool2d(x, 2, **PAIR), x),
    ),
}
"""Ours and ATen's, which every transform must treat alike."""


def loss(pool):
    return lambda x: pool(x.sin()).pow(3).sum()


TRANSFORMS: dict[str, Callable[[Function, Tensor], Tensor | tuple[Tensor, ...]]] = {
    "grad": lambda pool, x: grad(loss(pool))(x),
    "grad of grad": lambda pool, x: grad(lambda y: grad(loss(pool))(y).pow(2).sum())(x),
    "vjp": lambda pool, x: vjp(pool, x)[1](pool(x).cos())[0],
    "jvp": lambda pool, x: jvp(pool, (x,), (x.cos(),)),
    "jvp of jvp": lambda pool, x: jvp(
        lambda y: jvp(lambda z: pool(z.sin()), (y,), (x.cos(),))[1], (x,), (x.cos(),)
    ),
    "jvp of grad": lambda pool, x: jvp(grad(loss(pool)), (x,), (x.cos(),)),
    "grad of jvp": lambda pool, x: grad(
        lambda y: jvp(lambda z: pool(z.sin()), (y,), (x.cos(),))[1].pow(2).sum()
    )(x),
    "linearize": lambda pool, x: linearize(pool, x)[1](x.cos()),
    "vmap": lambda pool, x: vmap(pool)(torch.stack([x, -x, x.cos()])),
    "vmap over dimension 2": lambda pool, x: vmap(pool, in_dims=2)(
        torch.stack([x, -x, x.cos()], 2)
    ),
    "vmap over the last dimension, into the first": lambda pool, x: vmap(
        pool, in_dims=-1, out_dims=1
    )(torch.stack([x, -x], -1)),
    "vmap of vmap": lambda pool, x: vmap(vmap(pool, in_dims=1), in_dims=3)(
        torch.stack([x, x.cos(), -x], 1).unsqueeze(3)
        * torch.tensor([1.0, -2.0]).view(2, *[1] * (x.dim() - 2))
    ),
    "vmap of grad": lambda pool, x: vmap(grad(lambda y: loss(pool)(y[None])))(x),
    "vmap of jvp": lambda pool, x: vmap(lambda t: jvp(pool, (x,), (t,))[1])(
        torch.stack([x.cos(), x])
    ),
    "vmap of vjp": lambda pool, x: vmap(vjp(pool, x)[1])(torch.stack([pool(x), pool(-x)]))[0],
    "grad of vmap": lambda pool, x: grad(lambda y: vmap(pool)(y[:, None]).pow(2).sum())(x),
    "jvp of vmap": lambda pool, x: jvp(lambda y: vmap(pool)(y[:, None]), (x,), (x.cos(),)),
    "jacrev": lambda pool, x: jacrev(pool)(x[:1, :1]),
    "jacfwd": lambda pool, x: jacfwd(pool)(x[:1, :1]),
    "hessian": lambda pool, x: hessian(loss(pool))(x[:1, :1]),
    "jacrev of jacrev": lambda pool, x: jacrev(jacrev(loss(pool)))(x[:1, :1]),
    "vmap of hessian": lambda pool, x: vmap(hessian(loss(pool)))(x[:, None, :1]),
}


@cases.in_pairs(transform=list(TRANSFORMS), pool=list(POOLS))
def test_transforms(transform, pool, device):
    """E1: torch.func, nested and in any order, with ATen's results."""
    input = samples.distinct(3, 2, 5, 6).to(device)
    ours, atens = (TRANSFORMS[transform](function, input) for function in POOLS[pool])
    torch.testing.assert_close(ours, atens)
    assert all(bool(result.any()) for result in (ours if isinstance(ours, tuple) else (ours,)))


@pytest.mark.parametrize("index_dtype", samples.INDEX_TYPES, ids=samples.name_of)
@pytest.mark.parametrize("dimension", [0, 1, 2, 4])
def test_vmapped_indices_count_inside_each_sample(dimension, index_dtype, device):
    """E1 and M4: what vmap gives is what a loop gives."""
    samples_of_vmap = [samples.ties(2, 3, 4, 5, seed=seed).to(device) for seed in range(3)]
    given = {"start_padding": (2, 0), "return_indices": True, "index_dtype": index_dtype}
    pool = functools.partial(dmlpool.max_pooling, window_size=2, **given)
    found = vmap(pool, in_dims=dimension)(torch.stack(samples_of_vmap, dimension))
    for index, sample in enumerate(samples_of_vmap):
        for result, expected in zip(found, pool(sample), strict=True):
            samples.assert_same(result[index], expected)


def test_integers_are_not_differentiable(device):
    """M7: neither integer values nor indices ask for a gradient."""
    image = samples.normal(1, 1, 4, 4).to(device)
    values, indices = dmlpool.max_pooling(image.requires_grad_(), 2, return_indices=True)
    assert (values.requires_grad, indices.requires_grad) == (True, False)
    whole = samples.ties(1, 1, 4, 4, dtype=torch.int32).to(device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(image.detach(), torch.ones_like(image))
        _, indices = dmlpool.max_pooling(dual, 2, return_indices=True)
        assert forward_ad.unpack_dual(indices).tangent is None
        samples.assert_same(dmlpool.max_pooling(whole, 4), whole.amax((2, 3), keepdim=True))
    assert not dmlpool.max_pooling(whole, 2).requires_grad
