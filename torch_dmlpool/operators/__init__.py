"""Registered operators, one file per family. docs/contributing/specification.md has the rules."""

from torch_dmlpool import backends


def missing_kernels(device_type: str) -> str | None:
    """Why tensors on a CPU have no compiled kernels; None if they have, and on other devices."""
    return backends.chosen(device_type)[1] if device_type == "cpu" else None
