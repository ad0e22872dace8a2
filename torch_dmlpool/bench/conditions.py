"""What pools on a device and why, and what figures depend on: processor, threads, versions."""

import importlib.metadata
import os
import platform
import sysconfig
from pathlib import Path

import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import backends, timing
from torch_dmlpool.backends import cpu, fallbacks


def described(device: torch.device) -> dict[str, str]:
    """The conditions of a measurement on ``device``, by name."""
    found = {
        "torch_dmlpool": dmlpool.__version__,
        "runs on": backend_of(device),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "python": f"{platform.python_version()}, {sysconfig.get_platform()}",
        "processor": processor(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} processors",
        "load": timing.load() or "low",
    }
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        found["GPU"] = (
            f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, "
            f"{gpu.multi_processor_count} multiprocessors"
        )
        found["CUDA or ROCm"] = str(torch.version.cuda or torch.version.hip)
    return found


def backend_of(device: torch.device) -> str:
    """What pools on ``device``, and why."""
    name = backends.chosen(device.type)[0].name
    if name == "cpu":
        path = Path(cpu.library._name)
        return f"compiled C++ kernels ({path.name}, the best that this processor runs)"
    if name == "triton":
        return "Triton kernels" + " (TRITON_INTERPRET=1: slow)" * (device.type == "cpu")
    reasons = {
        "cpu": cpu.missing,
        "cuda": f"{fallbacks.SWITCH}=0" if fallbacks.is_turned_off() else "Triton is not installed",
    }
    why = reasons.get(device.type, f"there are no kernels for {device.type}")
    return f"plain PyTorch (SLOW: {why})"


def processor() -> str:
    """The processor's name, with family and model numbers: virtual machines often hide the rest."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


def version_of(package: str) -> str:
    """The version of a package, which is not imported: that would load a compiler."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
