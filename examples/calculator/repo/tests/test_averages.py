import unittest

from calculator.averages import mean, moving_average
from calculator.operations import CalculatorError


class AveragesTest(unittest.TestCase):
    def test_mean(self) -> None:
        self.assertEqual(mean([1, 2, 6]), 3)

    def test_moving_average_reaches_the_last_values(self) -> None:
        self.assertEqual(moving_average([1, 2, 3, 6], 2), [1.5, 2.5, 4.5])

    def test_window_as_long_as_the_series(self) -> None:
        self.assertEqual(moving_average([1, 2, 6], 3), [3])

    def test_window_longer_than_the_series(self) -> None:
        with self.assertRaises(CalculatorError):
            moving_average([1, 2], 3)


if __name__ == "__main__":
    unittest.main()
