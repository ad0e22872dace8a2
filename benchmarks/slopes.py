"""Growth as one number: the exponent of the power law that lies nearest to measured points, in
logarithms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slope:
    """``y ~ x ** exponent``, with the standard error of the exponent (0 for two points)."""

    exponent: float
    error: float

    @property
    def faster_than_proportional(self) -> bool:
        """Beyond two standard errors."""
        return self.exponent - 2 * self.error > 1

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ± {self.error:.2f}"


def slope(xs: Sequence[float], ys: Sequence[float]) -> Slope:
    """Least squares through the logarithms of at least two points with different x, all above 0."""
    across, up = [math.log(x) for x in xs], [math.log(y) for y in ys]
    exponent, intercept = statistics.linear_regression(across, up)
    if len(xs) == 2:
        return Slope(exponent, 0.0)
    middle = statistics.fmean(across)
    spread = math.fsum((x - middle) ** 2 for x in across)
    left_over = math.fsum(
        (y - intercept - exponent * x) ** 2 for x, y in zip(across, up, strict=True)
    )
    return Slope(exponent, math.sqrt(left_over / (len(xs) - 2) / spread))


def logarithms(windows: Sequence[int]) -> list[float]:
    """To base 2, of windows of at least 2, so that the shortest counts 1."""
    return [math.log2(window) for window in windows]


def per_doubling(xs: Sequence[int], ys: Sequence[float]) -> float:
    """What y gains each time that x doubles: the slope of the straight line over x's logarithm."""
    return statistics.linear_regression(logarithms(xs), ys).slope
