"""Peers from outside PyTorch: ONNX Runtime, JAX, FlagGems. Each is imported when it is asked
for."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from benchmarks import onnx_model
from benchmarks.bound import Absent, Bound, Problem
from benchmarks.workloads import Workload


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as reason:
        raise Absent(
            "not installed"
            if isinstance(reason, ModuleNotFoundError)
            else f"import failed: {reason}"
        ) from None


def bind_onnx_runtime(problem: Problem) -> list[Bound]:
    """A session on a one-node model, its input bound beforehand, its output from ONNX Runtime's own
    allocator."""
    runtime, workload = imported("onnxruntime"), problem.workload
    if workload.mode not in ("forward", "indices", "quantized"):
        raise Absent("inference alone")
    if workload.channels_last and workload.mode != "quantized":
        raise Absent("takes N, C, … order alone")
    if workload.per_channel:
        raise Absent("one scale for all channels")
    if workload.torch_dtype not in onnx_model.ELEMENT_TYPES or workload.dtype == "int64":
        raise Absent(f"no {workload.dtype}, or none from NumPy")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    # Its threads would otherwise go on spinning into the next contestant's time, on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    model = onnx_model.pooling_model(workload)
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as reason:  # its exception classes are private
        raise Absent(f"refuses the model: {' '.join(str(reason).split())[:200]}") from None
    outputs = [output.name for output in session.get_outputs()]
    calls = []
    for input in problem.inputs:
        binding = session.io_binding()
        array = input.movedim(1, -1).numpy() if workload.channels_last else input.numpy()
        binding.bind_ortvalue_input("input", runtime.OrtValue.ortvalue_from_numpy(array))
        for name in outputs:
            binding.bind_output(name, "cpu")
        run = functools.partial(session.run_with_iobinding, binding)
        calls.append(Bound(run, functools.partial(_onnx_tensors, binding, workload)))
    return calls


def _onnx_tensors(binding: Any, workload: Workload, _: None) -> tuple[Tensor, ...]:
    """Copies, for the next run may write to the same memory; indices count over the whole tensor,
    so take the rest."""
    values, *indices = (torch.from_numpy(array).clone() for array in binding.copy_outputs_to_cpu())
    plane = math.prod(workload.sizes[2:])
    return (
        values.movedim(-1, 1) if workload.channels_last else values,
        *(index % plane for index in indices),
    )


def bind_jax(problem: Problem) -> list[Bound]:
    """``reduce_window`` under jit, forward or with its vector-Jacobian product; waits for the
    result."""
    jax, workload = imported("jax"), problem.workload
    if workload.mode not in ("forward", "training"):
        raise Absent("no indices, and no quantized pool")
    if workload.channels_last:
        raise Absent("bound for N, C, … order alone")
    if workload.dtype in ("float64", "int64", "uint64"):
        raise Absent("64-bit types are off by default")

    pool = _jax_pool(jax, workload)

    @jax.jit
    def forward(input: Any) -> Any:
        return (pool(input),)

    @jax.jit
    def train(input: Any, gradient: Any) -> Any:
        values, pull_back = jax.vjp(pool, input)
        return values, *pull_back(gradient)

    calls = []
    for number, input in enumerate(problem.inputs):
        operands = [_to_jax(jax, input)]
        if workload.mode == "training":
            operands.append(_to_jax(jax, problem.gradients[number]))
        compiled = train if workload.mode == "training" else forward
        calls.append(Bound(functools.partial(_wait, jax, compiled, operands), _from_jax))
    return calls


def _jax_pool(jax: Any, workload: Workload) -> Any:
    """The row as a JAX function: a reduction, then for averages a division by each window's
    count."""
    jnp, lax, axes = jax.numpy, jax.lax, workload.geometry.axes
    padding = [(0, 0), (0, 0)]
    for axis, size, outputs in zip(
        axes, workload.sizes[2:], workload.output_sizes[2:], strict=True
    ):
        # To where the last window reaches: ceil_mode's may lie past the padding, another one's
        # short of it.
        reach = axis.first_position(outputs - 1) + axis.extent - size
        padding.append((axis.start_padding, max(reach, 0)))
    shape = {
        "window_dimensions": (1, 1, *workload.window),
        "window_strides": (1, 1, *workload.stride),
        "padding": padding,
        "window_dilation": (1, 1, *workload.dilation),
    }
    if workload.family == "max":
        integers = not workload.torch_dtype.is_floating_point
        lowest = torch.iinfo(workload.torch_dtype).min if integers else -math.inf
        return lambda operand: lax.reduce_window(
            operand, operand.dtype.type(lowest), lax.max, **shape
        )
    counts = torch.ones(())
    for axis, size, outputs in zip(
        axes, workload.sizes[2:], workload.output_sizes[2:], strict=True
    ):
        along = [
            axis.taps_before(output, size + axis.end_padding)
            if workload.include_padding
            else axis.taps_before(output, size) - axis.taps_before(output, 0)
            for output in range(outputs)
        ]
        counts = counts[..., None] * torch.tensor(along)
    divisors = jnp.asarray(counts.numpy())

    def average(input: Any) -> Any:
        total = lax.reduce_window(input.astype(jnp.float32), 0.0, lax.add, **shape)
        return (total / divisors).astype(input.dtype)

    return average


def _wait(jax: Any, compiled: Any, operands: list[Any]) -> Any:
    return jax.block_until_ready(compiled(*operands))


def _to_jax(jax: Any, tensor: Tensor) -> Any:
    """On the tensor's own kind of device; a copy, as JAX wants its memory aligned."""
    return jax.block_until_ready(
        jax.numpy.array(jax.dlpack.from_dlpack(tensor.detach()), copy=True)
    )


def _from_jax(returned: Any) -> tuple[Tensor, ...]:
    return tuple(torch.from_dlpack(array) for array in returned)


def flag_gems_pool(workload: Workload) -> Any:
    """FlagGems' Triton operators, called directly; they pool two dimensions and come without
    autograd."""
    operators = imported("flag_gems.ops")
    if workload.rank != 2 or workload.mode not in ("forward", "indices") or workload.channels_last:
        raise Absent("bound for plain 2-D forward pools alone")
    window = (workload.window, workload.stride, workload.padding)
    if workload.family == "average":
        return lambda tensor: operators.avg_pool2d(
            tensor, *window, workload.ceil_mode, workload.include_padding
        )
    pool = operators.max_pool2d_with_indices
    if workload.mode == "indices":
        return lambda tensor: pool(tensor, *window, workload.dilation, workload.ceil_mode)
    return lambda tensor: pool(tensor, *window, workload.dilation, workload.ceil_mode)[0]
