"""Evaluates a line of text: numbers, + - * /, parentheses."""

import re

from calculator.operations import CalculatorError, add, divide, multiply, subtract

_OPERATIONS = {"+": add, "-": subtract, "*": multiply, "/": divide}
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()])")


def evaluate(text: str) -> float:
    tokens = _tokens(text)
    result = _expression(tokens)
    if tokens:
        raise CalculatorError(f"unexpected {tokens[0]!r}")
    return result


def _tokens(text: str) -> list[str]:
    text = text.rstrip()
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculatorError(f"cannot read {text[position:]!r}")
        tokens.append(match[1])
        position = match.end()
    return tokens


def _expression(tokens: list[str]) -> float:
    result = _term(tokens)
    while tokens and tokens[0] in "+-":
        operation = _OPERATIONS[tokens.pop(0)]
        result = operation(result, _term(tokens))
    return result


def _term(tokens: list[str]) -> float:
    result = _factor(tokens)
    if tokens and tokens[0] in "*/":
        operation = _OPERATIONS[tokens.pop(0)]
        result = operation(result, _expression(tokens))
    return result


def _factor(tokens: list[str]) -> float:
    if not tokens:
        raise CalculatorError("the line ends too early")
    token = tokens.pop(0)
    if token != "(":
        return float(token)
    result = _expression(tokens)
    if not tokens or tokens.pop(0) != ")":
        raise CalculatorError("a parenthesis is not closed")
    return result
