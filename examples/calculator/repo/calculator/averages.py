"""Averages of a series of numbers."""

from collections.abc import Sequence

from calculator.operations import CalculatorError


def mean(values: Sequence[float]) -> float:
    if not values:
        raise CalculatorError("the mean of no values")
    return sum(values) / len(values)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of every `window` neighbouring values, from the first ones to the last ones."""
    if not 1 <= window <= len(values):
        raise CalculatorError(f"a window of {window} over {len(values)} values")
    return [mean(values[start : start + window]) for start in range(len(values) - window)]
