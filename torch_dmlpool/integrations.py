"""What compilers and exporters need beyond the registered operators, which call these functions.

Each loads the integration when it is first needed.
"""

import sys
from typing import Any

import torch

from torch_dmlpool import inductor
from torch_dmlpool.window import Arguments


def prepare_compiler(operator: Any) -> None:
    """Give Inductor the lowerings, and reject an operator that AOTInductor of PyTorch 2.11 and 2.12
    misreads, or that an export to ONNX does not know.
    """
    inductor.register()
    virtualized = sys.modules.get("torch._inductor.virtualized")
    # Packages of these versions number data types differently when they call an operator: it gets
    # float16 in place of int64.
    version = torch.torch_version.TorchVersion(torch.__version__)
    is_packed = virtualized is not None and virtualized.V.aot_compilation
    if is_packed and "ScalarType" in operator.schema and version < "2.13":
        raise NotImplementedError(
            f"dmlpool::{operator.name} takes a data type, which AOTInductor of PyTorch "
            f"{torch.__version__} misreads: use PyTorch 2.13, or take the program apart by "
            "torch_dmlpool.decompositions.decompositions()"
        )
    if _lacks_translation(operator):
        raise _missing_translations(operator)


def taken_apart_for_onnx(operator: Any, arguments: Arguments) -> Any:
    """The results by ATen's operators where an export to ONNX has no translation of ``operator``;
    else NotImplemented.
    """
    if not _lacks_translation(operator):
        return NotImplemented
    from torch_dmlpool.decompositions import for_onnx

    results = for_onnx(operator, arguments)
    if results is NotImplemented:
        raise _missing_translations(operator)
    return results


def _lacks_translation(operator: Any) -> bool:
    """Whether PyTorch exports to ONNX without a translation of the operator."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is None or not onnx.is_in_onnx_export():
        return False
    from torch_dmlpool.onnx import is_translated

    return not is_translated(operator.overload)


def _missing_translations(operator: Any) -> TypeError:
    """The error that says what ``torch.onnx.export`` needs for an operator that stays in the
    program.
    """
    return TypeError(
        "torch.onnx.export needs custom_translation_table=torch_dmlpool.onnx.translations() for "
        f"{operator.name}: PyTorch's own translations write no such pool"
    )
