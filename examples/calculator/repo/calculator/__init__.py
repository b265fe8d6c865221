"""A small calculator."""

from calculator.averages import mean, moving_average
from calculator.operations import CalculatorError, add, divide, multiply, subtract
from calculator.parser import evaluate

__all__ = ["CalculatorError", "add", "divide", "evaluate", "mean", "moving_average", "multiply", "subtract"]
