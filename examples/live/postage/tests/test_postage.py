import unittest

from postage import postage


class PostageTest(unittest.TestCase):
    def test_iceland(self) -> None:
        self.assertEqual(postage("IS", 200), 5)

    def test_norway(self) -> None:
        self.assertEqual(postage("NO", 200), 7.5)


if __name__ == "__main__":
    unittest.main()
