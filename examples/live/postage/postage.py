"""What a letter costs."""

RATES = {"IS": 2.5, "NO": 0.0}
"""For each 100 grams, by country."""


def postage(country: str, grams: int) -> float:
    return RATES[country] * grams / 100
