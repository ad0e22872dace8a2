"""Window geometry (G2-G5) against sliding the window by hand, and against torch.nn.functional where
it applies."""

import pickle

import oracle
import pytest
import torch

from torch_dmlpool.backends.reductions import taps_before
from torch_dmlpool.window import LARGEST_ARGUMENT, Axis, Window

hypothesis = pytest.importorskip("hypothesis")
strategies = hypothesis.strategies

RANGES = (1, 9), (1, 7), (0, 9), (0, 9), (1, 6)
"""The least and the largest window, stride, padding at the start and at the end, and dilation."""
axes = strategies.builds(
    oracle.Pooling,
    *(strategies.tuples(strategies.integers(*ends)) for ends in RANGES),
    strategies.booleans(),
)


@hypothesis.settings(max_examples=120)
@hypothesis.given(axes, strategies.integers(1, 14))
def test_closed_forms_for_any_geometry(pooling, size):
    """G2 to G5, A1 to A3 and M1: outputs, positions, taps inside and counted, empty windows are
    those of sliding it."""
    window, expected = Window.directml(1, **vars(pooling)), oracle.output_size(pooling, 0, size)
    (axis,) = window.axes
    if not expected:
        with pytest.raises(ValueError, match="the window leaves no output in spatial dimension W"):
            window.output_sizes([size])
        return
    assert window.output_sizes([size]) == (expected,)
    readings = oracle.readings(pooling, (size,))
    has_empty = not all(reading.taps for reading in readings)
    assert has_empty <= axis.may_be_empty(size) <= axis.may_be_empty("unknown")
    if size >= axis.dilation:  # else windows may step over the input
        assert axis.may_be_empty(size) == has_empty
    for reading in readings:
        (output,) = reading.output
        positions = oracle.tap_positions(pooling, 0, output)
        assert axis.extent == positions[-1] - positions[0] + 1
        assert axis.first_position(output) == positions[0]
        ends = 0, 1, size, size + axis.end_padding
        first = torch.tensor(axis.first_position(output))
        before = {bound: int(taps_before(bound, first, axis)) for bound in ends}
        assert before[ends[-1]] == reading.taps_in_box
        assert before[size] - before[0] == len(reading.taps)
        for bound in ends:
            assert before[bound] == sum(position < bound for position in positions)
        assert not reading.taps or before[0] == reading.taps[0]


@pytest.mark.parametrize(
    ("axis", "size", "expected"),
    [
        (Axis(2, 1, 2, 0, 2, False), 2**62, False),
        (Axis(2, 1, 2, 2, 1, True), 2**62, True),
        (Axis(2, 1, 2**30, 0, 2**30, False), 2**30, False),
        (Axis(2, 3, 2**30, 0, 2**30, True), 2**30 - 1, True),
        (Axis(2, 1, LARGEST_ARGUMENT, LARGEST_ARGUMENT, 1, False), 2**40, True),
    ],
)
def test_no_question_is_asked_per_output(axis, size, expected):
    """M1: whether a window may be empty is known at once, however many windows there are. A loop
    over them would not end."""
    assert axis.may_be_empty(size) is expected


def test_entries_are_read_in_dhw_order():
    window = Window.directml(3, (2, 3, 4), (5, 6, 7), (0, 1, 2), (3, 0, 1), (1, 2, 3))
    axes = (2, 5, 0, 3, 1), (3, 6, 1, 0, 2), (4, 7, 2, 1, 3)
    assert window.axes == tuple(Axis(*axis, False) for axis in axes)
    assert window.arguments == ([2, 3, 4], [5, 6, 7], [0, 1, 2], [3, 0, 1], [1, 2, 3], False)
    assert window.taps == 24
    assert window.rank == 3
    assert Window.directml(3, *window.arguments) == window


def test_a_window_is_a_value():
    """Hashable, comparable, picklable and not to be changed."""
    window = Window.directml(2, (2, 3), 1, 0, (0, 1), 1, True)
    assert len({window, Window.directml(2, [2, 3], (1, 1), 0, [0, 1], 1, True)}) == 1
    assert pickle.loads(pickle.dumps(window)) == window
    with pytest.raises(AttributeError):
        window.axes = ()
    with pytest.raises(TypeError, match="takes 2 positional arguments"):
        Window(window.axes, 5)
    assert not any(hasattr(each, "__dict__") for each in (window, *window.axes))


def test_the_largest_argument_is_accepted():
    """G4: absurd padding and dilation are geometry like any other, in exact integers."""
    most = LARGEST_ARGUMENT
    window = Window.directml(1, 2, most, most, most, most)
    assert window.output_sizes([5]) == ((5 + 2 * most - (most + 1)) // most + 1,)


@hypothesis.given(
    *(strategies.integers(low, high) for low, high in ((1, 3), (1, 12), (1, 5), (0, 2), (1, 3))),
    strategies.none() | strategies.integers(1, 4),
    strategies.booleans(),
)
def test_output_size_is_that_of_pytorch(rank, size, kernel, padding, dilation, stride, ceil_mode):
    """G3: for symmetric padding, PyTorch's own rule, ceil_mode and its refusals included."""
    hypothesis.assume(2 * padding <= kernel)
    window = Window.pytorch(rank, kernel, stride, padding, dilation, ceil_mode)
    sizes, pool = [size] * rank, getattr(torch.nn.functional, f"max_pool{rank}d")
    input = torch.zeros(1, 1, *sizes)
    try:
        expected = pool(input, kernel, stride, padding, dilation, ceil_mode).shape[2:]
    except RuntimeError:
        with pytest.raises(ValueError, match="the window leaves no output"):
            window.output_sizes(sizes)
    else:
        assert window.output_sizes(sizes) == tuple(expected)


@hypothesis.given(*[strategies.integers(1, bound) for bound in (12, 6, 4, 3)])
def test_same_padding_keeps_the_size(size, kernel, stride, dilation):
    """E8: ⌈size / stride⌉ windows, no more padding than needed, the odd element at the end."""
    (axis,) = Window.pytorch(1, kernel, stride, "same", dilation, sizes=[size]).axes
    assert axis.output_size(size) == -(-size // stride)
    total = axis.start_padding + axis.end_padding
    assert axis.end_padding - axis.start_padding == total % 2
    if total:
        less = Axis(kernel, stride, 0, total - 1, dilation, False)
        assert less.output_size(size) < axis.output_size(size)


def test_words_and_pairs_of_padding():
    """E8."""
    assert Window.pytorch(2, 3, 1, "valid") == Window.pytorch(2, 3, 1, 0)
    assert Window.pytorch(2, 3, 1, "".join(("sa", "me"))) == Window.pytorch(2, 3, 1, 1)
    pairs = Window.pytorch(2, 3, padding=((1, 2), (0, 4)))
    assert pairs == Window.directml(2, 3, 3, (1, 0), (2, 4))
    assert Window.pytorch(2, 3) == Window.directml(2, 3, 3)


@pytest.mark.parametrize(("window", "stride", "dilation"), [(1, 1, 1), (4, 1, 2), (3, 2, 1)])
def test_causal_windows_end_where_they_stand(window, stride, dilation):
    """E8: window i reads element i * stride last, and there is one for every stride."""
    (axis,) = Window.pytorch(1, window, stride, "causal", dilation).axes
    for size in range(1, 12):
        outputs = axis.output_size(size)
        assert outputs == -(-size // stride)
        for output in range(outputs):
            assert axis.first_position(output) + axis.extent - 1 == output * stride


def test_sizes_are_as_many_as_the_window_has_axes():
    message = r"^the input must have 2 spatial sizes \(H, W\), got \(3, 4, 5\)$"
    with pytest.raises(ValueError, match=message):
        Window.directml(2, 2).output_sizes((3, 4, 5))


def symbols(*numbers):
    """Symbolic sizes that stand for the numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(numbers))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = mode.from_tensor(torch.empty(numbers), symbolic_context=context).shape
    assert all(type(number) is torch.SymInt for number in sizes)
    return sizes


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_symbolic_sizes_and_windows(ceil_mode):
    """E2: the same closed forms, whatever numbers the symbols stand for."""
    for size, window_size in ((9, 4), (10, 3), (11, 6), (12, 7)):
        symbolic = symbols(size, window_size)
        window = Window.directml(1, symbolic[1], 2, 1, 2, 1, ceil_mode)
        expected = Window.directml(1, window_size, 2, 1, 2, 1, ceil_mode).output_sizes([size])
        assert tuple(int(output) for output in window.output_sizes(symbolic[:1])) == expected
        (axis,) = Window.pytorch(1, symbolic[1], 3, "same", sizes=symbolic[:1]).axes
        (plain,) = Window.pytorch(1, window_size, 3, "same", sizes=[size]).axes
        found = int(axis.start_padding), int(axis.end_padding)
        assert found == (plain.start_padding, plain.end_padding)
