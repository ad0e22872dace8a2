"""Pools of ragged sets and of tokens (T1 to T5) against a loop over sets."""

import functools
import math

import cases
import numpy as np
import oracle
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import torch_dmlpool as dmlpool
from torch_dmlpool import backends

REDUCTIONS = ["mean", "sum", "max", "min"]
operators = torch.ops.dmlpool


def random_request(seed, device):
    """Rows in any layout and data type, offsets of both types, and a mask or none."""
    random = np.random.default_rng(seed)
    channels = int(random.choice([1, 2, 3, 7, 16, 33, 64, 200, 1100]))
    longest = int(random.choice([2, 9, 40, 300])) if channels < 200 else 20
    lengths = random.integers(0, longest, int(random.integers(0, 9)))
    offsets = np.concatenate([[0], lengths.cumsum()]) + int(random.integers(0, 3))
    count = int(offsets[-1]) + int(random.integers(0, 3))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, channels, generator=generator).mul(4).round().div(4)
    rows[torch.rand(rows.shape, generator=generator) < 0.002] = math.nan
    layout = random.integers(0, 4)
    if layout == 1:
        rows = rows.t().contiguous().t()
    elif layout == 2:
        rows = torch.cat([rows, rows], 1)[:, channels:]
    elif layout == 3:
        rows = torch.stack([rows, rows], 1)[:, 1]
    dtypes = torch.float32, torch.float64, torch.float16, torch.bfloat16
    rows = rows.to(dtypes[random.integers(0, 4)])
    mask = None
    if random.integers(0, 2):
        mask = torch.from_numpy(random.random(count) < 0.7)
        rows = rows.clone()
        rows[~mask] = math.nan
        if random.integers(0, 2):  # a byte of True may be any but 0
            mask = torch.where(mask, 7, 0).to(torch.uint8).view(torch.bool)
    dtype = torch.int32 if random.integers(0, 2) else torch.int64
    found = torch.from_numpy(offsets).to(dtype)
    return rows.to(device), found.to(device), None if mask is None else mask.to(device)


def bound(rows, offsets, mask, reduction, dtype):
    """E6: how far a mean or sum may be from the exact one."""
    magnitudes, _ = oracle.pooled_sets(np.abs(rows), offsets, mask, reduction)
    taps = max([2, *np.diff(offsets)])
    unit = 2.0**-53 if dtype is torch.float64 else 2.0**-24
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    return ((2 + math.ceil(math.log2(taps))) * unit + rounding) * magnitudes + (
        6e-8 if dtype is torch.float16 else 0
    )


def check_request(seed, device):
    rows, offsets, mask = random_request(seed, device)
    numbers = rows.double().cpu().numpy()
    kept = None if mask is None else (mask.cpu().view(torch.uint8) != 0).numpy()
    steps = offsets.tolist()
    for reduction in REDUCTIONS:
        expected, winners = oracle.pooled_sets(numbers, steps, kept, reduction)
        if reduction in ("max", "min"):
            found, indices = dmlpool.segment_pooling(
                rows, offsets, reduction, mask=mask, return_indices=True
            )
            assert np.array_equal(indices.cpu().numpy(), winners), (seed, reduction)
            assert np.array_equal(found.double().cpu().numpy(), expected, equal_nan=True), seed
            continue
        found = dmlpool.segment_pooling(rows, offsets, reduction, mask=mask)
        limits = bound(numbers, steps, kept, reduction, rows.dtype)
        far = np.abs(found.double().cpu().numpy() - expected) > limits
        assert found.dtype is rows.dtype
        assert found.is_contiguous()
        assert not far.any(), (seed, reduction)


@pytest.mark.parametrize("block", range(8))
def test_random_requests_equal_a_loop_over_sets(block, device):
    """T1, T2: every layout, type of offsets, reduction and mask; NaN under masks."""
    for seed in range(block * 12, block * 12 + 12):
        check_request(seed, device)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.uint16, torch.bool])
def test_maxima_take_every_ordered_type(reduction, dtype, device):
    rows = torch.arange(24).sub(9).view(8, 3).to(dtype).to(device)
    offsets = torch.tensor([0, 3, 3, 8], device=device)
    if reduction in ("mean", "sum"):
        with pytest.raises(TypeError, match="input has data type"):
            dmlpool.segment_pooling(rows, offsets, reduction)
        return
    found, indices = dmlpool.segment_pooling(rows, offsets, reduction, return_indices=True)
    numbers = rows.cpu().numpy()
    values, winners = oracle.pooled_sets(numbers.astype(float), [0, 3, 3, 8], None, reduction)
    expected = np.nan_to_num(values, posinf=0, neginf=0).astype(numbers.dtype)
    expected[1] = oracle.ends(numbers.dtype)[reduction == "min"]
    assert np.array_equal(indices.cpu().numpy(), winners)
    assert np.array_equal(found.cpu().numpy(), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.uint8])
def test_tokens_are_pooled_as_their_kept_rows(reduction, mask_dtype, device):
    """T4: the same bits, but where PyTorch's own operations add in another order, and padding may
    hold NaN."""
    bound = 1e-5 * (
        backends.serving(device.type).name == "reference" and reduction in ("mean", "sum")
    )
    same = functools.partial(torch.testing.assert_close, rtol=bound, atol=bound)
    torch.manual_seed(0)
    tokens = torch.randn(5, 300, 48)
    mask = torch.arange(300) < torch.tensor([[300], [1], [0], [17], [150]])
    tokens[~mask] = math.nan
    rows, lengths = tokens[mask].to(device), mask.sum(1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
    numbers = mask.to(mask_dtype).mul(3) if mask_dtype is not torch.bool else mask
    found = dmlpool.token_pooling(tokens.to(device), numbers.to(device), reduction)
    same(found, dmlpool.segment_pooling(rows, offsets, reduction))
    layer = dmlpool.nn.TokenPool(reduction)
    assert torch.equal(layer(tokens.to(device), numbers.to(device)), found)
    sliced = torch.cat([tokens, tokens], 1)[:, 300:].to(device)
    same(dmlpool.token_pooling(sliced, numbers.to(device), reduction), found)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(40,), (40, 2, 3), (0, 4), (40, 0)])
def test_features_of_any_shape(reduction, shape):
    rows = torch.randn(shape)
    offsets = torch.tensor([0, shape[0] // 2, shape[0]], dtype=torch.int32)
    found = dmlpool.segment_pooling(rows, offsets, reduction)
    flat = dmlpool.segment_pooling(rows.reshape(shape[0], math.prod(shape[1:])), offsets, reduction)
    assert torch.equal(found, flat.reshape(2, *shape[1:]))
    assert torch.equal(dmlpool.nn.SegmentPool(reduction)(rows, offsets), found)
    assert dmlpool.segment_pooling(rows, offsets[:1] * 0, reduction).shape == (0, *shape[1:])


def test_bits_depend_on_the_set_alone():
    """E6: neither on the number of threads nor on other sets."""
    torch.manual_seed(2)
    lengths = torch.tensor([3, 400, 17, 80_000, 1, 260, 9])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows, before = torch.randn(int(offsets[-1]), 72), torch.get_num_threads()
    try:
        for reduction in REDUCTIONS:
            found = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                found.append(dmlpool.segment_pooling(rows, offsets, reduction))
            assert torch.equal(found[0], found[1])
            assert torch.equal(found[0], found[2])
            for number, (begin, end) in enumerate(offsets.unfold(0, 2, 1).tolist()):
                alone = dmlpool.segment_pooling(
                    rows[begin:end], torch.tensor([0, end - begin]), reduction
                )
                assert torch.equal(alone[0], found[0][number])
    finally:
        torch.set_num_threads(before)


def finite(pool):
    """``pool`` with 0 for empty sets of maxima and minima."""
    return lambda rows: torch.where(pool(rows).isinf(), 0, pool(rows))


def pools(reduction, is_masked):
    """Pools of segments and of tokens, and what they pool."""
    torch.manual_seed(1)
    offsets, mask = torch.tensor([1, 3, 3, 9]), torch.rand(11) < 0.7
    kept = torch.rand(3, 5) < 0.6
    kept[1] = False
    of_rows = mask if is_masked else None
    of_tokens = kept if is_masked else None
    return [
        (
            finite(lambda rows: dmlpool.segment_pooling(rows, offsets, reduction, mask=of_rows)),
            torch.randn(11, 3, dtype=torch.double, requires_grad=True),
        ),
        (
            finite(lambda tokens: dmlpool.token_pooling(tokens, of_tokens, reduction)),
            torch.randn(3, 5, 2, dtype=torch.double, requires_grad=True),
        ),
    ]


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_derivatives_of_every_order(reduction, is_masked):
    """E1: reverse and forward, batched, twice."""
    for pool, rows in pools(reduction, is_masked):
        every = {"check_batched_grad": True}
        forward = {"check_forward_ad": True, "check_batched_forward_grad": True}
        assert torch.autograd.gradcheck(pool, rows, **every, **forward)
        assert torch.autograd.gradgradcheck(pool, rows, check_fwd_over_rev=True, **every)


@pytest.mark.parametrize("where", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 1)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_vmap(reduction, where):
    """Each of rows, offsets and mask may be mapped."""
    offsets = torch.tensor([1, 3, 3, 9])
    batches = torch.randn(4, 11, 5), offsets + torch.tensor([[0], [-1], [2], [0]])
    mask = torch.rand(4, 11) < 0.6
    every = [*batches, mask.t() if where[2] == 1 else mask]
    operands = [each if at is not None else each[0] for each, at in zip(every, where, strict=True)]
    if where[2] is None:
        operands[2] = mask[0]

    def pool(rows, offsets, mask):
        wanted = reduction in ("max", "min")
        found = dmlpool.segment_pooling(rows, offsets, reduction, mask=mask, return_indices=wanted)
        return found if wanted else (found,)

    found = torch.vmap(pool, where)(*operands)
    for number in range(4):
        pair = zip(operands, where, strict=True)
        one = [each if at is None else each.select(at, number) for each, at in pair]
        for mine, theirs in zip(found, pool(*one), strict=True):
            assert torch.equal(mine[number], theirs)


def calls():
    """Arguments of each operator."""
    rows, offsets = torch.randn(11, 5, requires_grad=True), torch.tensor([1, 3, 3, 9])
    tokens, mask = torch.randn(3, 7, 5, requires_grad=True), torch.rand(3, 7) < 0.6
    frames = torch.randn(3, 4, 7, requires_grad=True)
    sets, samples = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    return {
        "segment_sums": [(rows, offsets, None, True), (tokens, None, mask, False)],
        "segment_maxima": [(rows, offsets, None, True), (tokens, None, mask, False)],
        "segment_shares": [(sets, offsets, None, 11, True), (samples, None, mask, 7, False)],
        "statistics": [(frames, mask, 1), (frames, None, 0)],
    }


# PyTorch 2.15's own check looks at tensors of the graphs that it traces.
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning"
)
@pytest.mark.parametrize("name", list(calls()))
def test_opcheck(name):
    for arguments in calls()[name]:
        torch.library.opcheck(getattr(operators, name).default, arguments)


def test_other_numbers_of_rows_and_sets_are_not_compiled_anew():
    """E2: forward and backward."""
    counter = CompileCounterWithBackend("aot_eager")

    def both(rows, offsets):
        means = dmlpool.segment_pooling(rows, offsets)
        return means * 2 + dmlpool.segment_pooling(rows, offsets, "max").clamp(min=-9)

    compiled = torch.compile(both, dynamic=True, fullgraph=True, backend=counter)
    for count, sets in ((20, 4), (33, 7), (50, 2)):
        rows = torch.randn(count, 6, requires_grad=True)
        offsets = torch.linspace(0, count, sets + 1).long()
        for step in (compiled, both):
            rows.grad = None
            step(rows, offsets).sum().backward()
            if step is compiled:
                found = rows.grad
        assert torch.equal(compiled(rows, offsets), both(rows, offsets))
        assert torch.equal(found, rows.grad)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the exporter, of names of dimensions
def test_onnx_has_standard_operators_of_any_sizes():
    """T5: tokens and statistics, without a table of translations."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    class Pools(torch.nn.Module):
        def forward(self, tokens, mask):
            frames, kept = tokens.transpose(1, 2), (mask != 0)[:, None]
            pooled = [dmlpool.token_pooling(tokens, mask, each) for each in ("mean", "max")]
            return *pooled, *dmlpool.statistics_pooling(frames, kept)

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    program = torch.onnx.export(
        Pools().eval(),
        (torch.randn(2, 3, 4), mask),
        dynamo=True,
        verbose=False,
        dynamic_shapes=(sizes, sizes),
    )
    assert program is not None
    assert {node.domain for node in program.model.graph} == {""}
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    operands = torch.randn(4, 7, 4), torch.randint(0, 2, (4, 7))
    operands[1][2] = 0
    pairs = zip(session.get_inputs(), operands, strict=True)
    found = session.run(None, {each.name: value.numpy() for each, value in pairs})
    for mine, expected in zip(found, Pools()(*operands), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), expected)


@cases.OF_THE_LIBRARY
def test_plain_operators_compute_the_same_gradients():
    """The reference, which serves other devices, beside the kernels."""
    from torch_dmlpool.backends import cpu, reference

    ours, plain = cpu.BACKEND, reference.BACKEND

    for seed in range(40):
        rows, offsets, mask = random_request(seed, torch.device("cpu"))
        rows, offsets = rows.float().nan_to_num(), offsets.long()
        for is_mean in (False, True):
            request = offsets, mask, is_mean
            sums = ours.segment_sums(rows, *request)
            torch.testing.assert_close(plain.segment_sums(rows, *request), sums)
            found = ours.segment_maxima(rows, *request)
            for mine, theirs in zip(found, plain.segment_maxima(rows, *request), strict=True):
                assert torch.equal(mine, theirs)
            request = offsets, mask, len(rows), is_mean
            shares = ours.segment_shares(sums, *request)
            torch.testing.assert_close(plain.segment_shares(sums, *request), shares)
            with pytest.raises(ValueError, match="offsets"):  # before anything is written
                ours.segment_shares(sums, offsets + 1_000_000_000, *request[1:])
            scatter = sums, offsets, None, len(rows), False, found[1]
            assert torch.equal(ours.segment_shares(*scatter), plain.segment_shares(*scatter))
