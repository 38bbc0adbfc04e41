import math
import unittest

from geometry import Vector


class VectorTest(unittest.TestCase):
    def setUp(self):
        self.a = Vector(1.0, 2.0)
        self.b = Vector(3.0, 4.0)

    def test_add(self):
        result = self.a + self.b
        self.assertEqual(result.x, 4.0)
        self.assertEqual(result.y, 6.0)

    def test_subtract(self):
        result = self.b - self.a
        self.assertEqual(result.x, 2.0)
        self.assertEqual(result.y, 2.0)

    def test_scale(self):
        result = self.a * 3
        self.assertEqual(result.x, 3.0)
        self.assertEqual(result.y, 6.0)

    def test_dot(self):
        self.assertEqual(self.a.dot(self.b), 11.0)

    def test_length(self):
        self.assertAlmostEqual(self.b.length(), 5.0)
        self.assertAlmostEqual(self.a.length(), math.sqrt(5.0))

    def test_normalize(self):
        result = self.b.normalize()
        self.assertAlmostEqual(result.length(), 1.0)
        self.assertAlmostEqual(result.x, 0.6)
        self.assertAlmostEqual(result.y, 0.8)

    def test_equal(self):
        self.assertEqual(self.a, Vector(1.0, 2.0))
        self.assertNotEqual(self.a, self.b)

    def test_repr(self):
        self.assertEqual(repr(self.a), "Vector(1.0, 2.0)")

    def test_negate(self):
        result = -self.a
