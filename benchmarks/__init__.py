"""Benchmarks for those who work on the package: ``python -m benchmarks`` lists them."""
