import unittest

from calculator.operations import CalculatorError, divide
from calculator.parser import evaluate


class DivisionTest(unittest.TestCase):
    def test_divide(self) -> None:
        self.assertEqual(divide(9, 2), 4.5)

    def test_division_by_zero(self) -> None:
        with self.assertRaisesRegex(CalculatorError, "division by zero"):
            divide(1, 0)

    def test_division_by_zero_in_a_line(self) -> None:
        with self.assertRaisesRegex(CalculatorError, "division by zero"):
            evaluate("8 / 0")


if __name__ == "__main__":
    unittest.main()
