"""Benchmarks: the operators beside their peers on the machine at hand, and what the compiler made
of the kernels.

``python -m benchmarks`` measures (see ``--help``), ``python -m benchmarks.report`` turns what was
measured into docs/benchmarks.md with its pictures and the README's table, ``python -m
benchmarks.static`` reads the compiled kernels.
"""
