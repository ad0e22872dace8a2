"""What compilers, exporters and DTensors need beyond the registered operators.

``ops.registration`` gets a function of each, which loads the integration when it is first needed.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_dmlpool import inductor
from torch_dmlpool.ops import dispatching, registration


def lower_for_inductor(operator: registration.Operator) -> None:
    """Register the lowerings with Inductor; reject operators with arguments that AOTInductor of
    PyTorch 2.11 and 2.12 misreads.
    """
    inductor.register()
    virtualized = sys.modules.get("torch._inductor.virtualized")
    # Packages of these versions number data types differently when they call an operator: it gets
    # float16 in place of int64.
    version = torch.torch_version.TorchVersion(torch.__version__)
    if "ScalarType" not in operator.schema or version >= "2.13" or virtualized is None:
        return
    if virtualized.V.aot_compilation:
        raise NotImplementedError(
            f"dmlpool::{operator.name} takes a data type, which AOTInductor of PyTorch "
            f"{torch.__version__} misreads: use PyTorch 2.13, or take the program apart by "
            "torch_dmlpool.decompositions.decompositions()"
        )


def lacks_translation(operator: registration.Operator) -> bool:
    """Whether PyTorch exports to ONNX without a translation of the operator."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is None or not onnx.is_in_onnx_export():
        return False
    from torch_dmlpool.onnx import is_translated

    return not is_translated(operator.overload)


def require_translations(operator: registration.Operator) -> None:
    """Raise an error that says what ``torch.onnx.export`` needs for an operator that stays in the
    program.
    """
    if lacks_translation(operator):
        table = "custom_translation_table=torch_dmlpool.onnx.translations()"
        raise TypeError(
            f"torch.onnx.export needs {table} for {operator.name}: PyTorch's own translations "
            "write no such pool"
        )


def take_apart_for_onnx(operator: registration.Operator) -> Callable[..., Any] | None:
    """What computes an operator by ATen's where an export to ONNX has no translation of it."""
    if not lacks_translation(operator):
        return None
    from torch_dmlpool.decompositions import for_onnx

    def compute(*arguments: Any) -> Any:
        results = for_onnx(operator, *arguments)
        if results is NotImplemented:
            require_translations(operator)
        return results

    return compute


def refuse_older_exporter() -> None:
    """Raise an error where PyTorch's older exporter traces a pool that PyTorch does not have."""
    if torch.onnx.is_in_onnx_export():
        raise TypeError(
            "torch.onnx.export with dynamo=False writes only the pools that torch.nn.functional "
            "has, and this is another: use dynamo=True"
        )


registration.before_fake[:] = [lower_for_inductor, require_translations]
dispatching.before_trace[:] = [refuse_older_exporter]
registration.replacements[:] = [take_apart_for_onnx]
DTENSORS = "torch.distributed.tensor"
if "torch_dmlpool.distributed" not in sys.modules:
    dispatching.missing_integrations[DTENSORS] = (
        "to pool a DTensor, write `import torch_dmlpool.distributed` once, in every process"
    )
