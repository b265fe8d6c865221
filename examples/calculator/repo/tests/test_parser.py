import unittest

from calculator.operations import CalculatorError
from calculator.parser import evaluate


class ParserTest(unittest.TestCase):
    def test_product_before_sum(self) -> None:
        self.assertEqual(evaluate("2 + 3 * 4"), 14)

    def test_product_first_in_the_line(self) -> None:
        self.assertEqual(evaluate("2 * 3 + 4"), 10)

    def test_division_goes_from_left_to_right(self) -> None:
        self.assertEqual(evaluate("16 / 4 / 2"), 2)

    def test_parentheses(self) -> None:
        self.assertEqual(evaluate("2 * (3 + 4)"), 14)

    def test_an_open_parenthesis(self) -> None:
        with self.assertRaises(CalculatorError):
            evaluate("(1 + 2")


if __name__ == "__main__":
    unittest.main()
