import unittest

from calculator.operations import add, multiply, subtract


class OperationsTest(unittest.TestCase):
    def test_add(self) -> None:
        self.assertEqual(add(2, 3), 5)

    def test_subtract(self) -> None:
        self.assertEqual(subtract(7, 3), 4)

    def test_subtract_below_zero(self) -> None:
        self.assertEqual(subtract(3, 7), -4)

    def test_multiply(self) -> None:
        self.assertEqual(multiply(4, 2.5), 10)


if __name__ == "__main__":
    unittest.main()
