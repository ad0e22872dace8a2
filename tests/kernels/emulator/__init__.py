"""Runs the PTX of whole launches on a CPU: values, bounds, alignment and races of kernels that no
GPU is needed for."""
