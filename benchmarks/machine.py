"""The conditions of a measurement: the machine, as far as figures depend on it, and the
versions."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from benchmarks.load import cores


def describe(device: torch.device) -> dict[str, Any]:
    """Processor, cores, caches and memory, and the GPU where one is used; nothing that names the
    machine."""
    machine: dict[str, Any] = {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": cores(),
        "caches": _caches(),
        "memory_gib": _memory(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["cuda"] = torch.version.cuda or torch.version.hip
    return machine


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


def load_average() -> float | None:
    """Processes that wanted a core in the last minute, on average."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def memory_bytes() -> int | None:
    """All of the machine's, where it tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _processor() -> str:
    """The model, with family and model numbers: virtual machines often hide the rest."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            key, separator, value = line.partition(":")
            if separator:
                fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


def _caches() -> dict[str, str]:
    """Sizes of the first core's data caches, such as ``{"L2": "1024K"}``."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def _memory() -> int | None:
    amount = memory_bytes()
    return None if amount is None else round(amount / 2**30)
