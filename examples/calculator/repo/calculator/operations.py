"""Arithmetic on two numbers."""


class CalculatorError(Exception):
    """A calculation that has no result."""


def add(left: float, right: float) -> float:
    return left + right


def subtract(left: float, right: float) -> float:
    return left + right


def multiply(left: float, right: float) -> float:
    return left * right


def divide(left: float, right: float) -> float:
    """Raises CalculatorError for a division by zero."""
    return left / right
