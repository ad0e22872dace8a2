"""From a float model to 8 bits by torchao, to pools of integers and to ONNX Runtime: accuracy and
time at each step, beside torch.nn's pools.
"""

import importlib.util
import logging
import time
import warnings
from types import ModuleType
from typing import Any

import torch
from digits import TRAINING_IMAGES, train
from sklearn.datasets import load_digits
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from torch_dmlpool.onnx import translations

NEEDED = ("torchao", "onnxscript", "onnxruntime")


def network(pools: ModuleType) -> nn.Sequential:
    torch.manual_seed(1)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), pools.MaxPool2d(3, stride=2, padding=1)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), pools.AvgPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, 10))


def quantized(model: nn.Module, images: Tensor) -> torch.export.ExportedProgram:
    """The model in 8-bit integers, for the ranges that ``images`` show."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    settings = x86.get_default_x86_inductor_quantization_config()
    quantizer = x86.X86InductorQuantizer().set_global(settings)
    sizes = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(model, (images,), dynamic_shapes=sizes).module()
    prepared = prepare_pt2e(exported, dmlpool.nn.pooling_quantizer(quantizer))
    prepared(images)
    return torch.export.export(convert_pt2e(prepared), (images,), dynamic_shapes=sizes)


def session(program: Any, images: Tensor) -> Any:
    """The program as ONNX Runtime runs it, on one thread."""
    import onnxruntime

    options: dict[str, Any] = {"dynamo": True, "verbose": False, "opset_version": 21}
    written = torch.onnx.export(
        program, (images,), custom_translation_table=translations(), **options
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(
        written.model_proto.SerializeToString(), settings, ["CPUExecutionProvider"]
    )


def seconds(sessions: dict[str, Any], images: Tensor) -> dict[str, float]:
    """The shortest of many calls each, one after the other in turn."""
    least = dict.fromkeys(sessions, float("inf"))
    for _ in range(200):
        for name, each in sessions.items():
            start = time.perf_counter()
            each.run(None, {each.get_inputs()[0].name: images.numpy()})
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def main() -> None:
    missing = " ".join(name for name in NEEDED if importlib.util.find_spec(name) is None)
    if missing:
        print(f"Nothing was run: this example needs {missing} (pip install {missing})")
        return
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # of the exporters, about their own future
    torch.set_num_threads(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    training, test = images[:TRAINING_IMAGES], images[TRAINING_IMAGES:]
    model, plain = network(dmlpool.nn), network(nn)
    train(model, training, labels[:TRAINING_IMAGES])
    plain.load_state_dict(model.state_dict())
    model, plain = model.eval(), plain.eval()
    with torch.no_grad():
        floats, usual = quantized(model, training), quantized(plain, training)
    integers = dmlpool.nn.integer_pooling(floats)
    programs = {
        "float32, torch.nn's pools": torch.export.export(plain, (test,)),
        "float32, these pools": torch.export.export(model, (test,)),
        "8 bits, torch.nn's pools": usual,
        "8 bits, these pools": floats,
        "8 bits, pools of integers": integers,
    }
    sessions = {name: session(program, test) for name, program in programs.items()}
    times = seconds(sessions, test)
    print(f"{len(test)} test images       accuracy: PyTorch, ONNX Runtime    ms in ONNX Runtime")
    for name, program in programs.items():
        (scores,) = sessions[name].run(None, {sessions[name].get_inputs()[0].name: test.numpy()})
        right = [
            (each.argmax(1) == labels[TRAINING_IMAGES:]).float().mean().item()
            for each in (program.module()(test), torch.from_numpy(scores))
        ]
        print(f"{name:28}{right[0]:15.1%}{right[1]:14.1%}{1000 * times[name]:18.3f}")


if __name__ == "__main__":
    main()
