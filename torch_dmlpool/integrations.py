"""What compilers, exporters and DTensors need beyond the registered operators.

``ops.registration`` gets a function of each, which loads the integration when it is first needed.
"""

import sys

import torch

from torch_dmlpool import inductor
from torch_dmlpool.ops import registration


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
            f"{torch.__version__} misreads: "
            "use PyTorch 2.13, or take the program apart by "
            "torch_dmlpool.decompositions.decompositions()"
        )


def require_translations(_: registration.Operator) -> None:
    """Raise an error that says what ``torch.onnx.export`` needs if nobody has imported the
    translations.
    """
    onnx = sys.modules.get("torch.onnx")
    if onnx is not None and onnx.is_in_onnx_export() and "torch_dmlpool.onnx" not in sys.modules:
        table = "custom_translation_table=torch_dmlpool.onnx.translations()"
        raise TypeError(
            f"torch.onnx.export needs dynamo=True, {table} to know torch_dmlpool's operators"
        )


def translate_traces() -> None:
    """Register the ONNX translations where PyTorch's older exporter traces an operator."""
    if torch.onnx.is_in_onnx_export():
        from torch_dmlpool import onnx

        onnx.register()


registration.before_fake.extend([lower_for_inductor, require_translations])
registration.before_trace.append(translate_traces)
DTENSORS = "torch.distributed.tensor"
registration.untaught[DTENSORS] = (
    "to pool a DTensor, write `import torch_dmlpool.distributed` once, in every process"
)
