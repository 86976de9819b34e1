#!/usr/bin/env python3
"""bench/cluster/simulate.py against what can be worked out by hand."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "cluster"))
import simulate  # noqa: E402  pylint: disable=wrong-import-position


class Simulation(unittest.TestCase):
    def test_equal_stages_fill_and_drain(self):
        times = [[2.0] * 10 for _ in range(4)]
        self.assertAlmostEqual(simulate.pipeline(times, 0, [512] * 10, 1.0, 0.0, 0.0), (10 + 4 - 1) * 2.0)

    def test_the_slowest_stage_decides(self):
        times = [[1.0] * 50, [3.0] * 50, [1.0] * 50]
        self.assertAlmostEqual(simulate.pipeline(times, 0, [1] * 50, 1.0, 0.0, 0.0), 1 + 50 * 3.0 + 1)

    def test_a_thin_link_decides(self):
        # 100 rows of 4 bytes over 100 bytes a second: four seconds a step.
        self.assertAlmostEqual(simulate.pipeline([[1.0] * 20, [1.0] * 20], 4, [100] * 20, 100.0, 0.0, 0.0), 1 + 20 * 4.0 + 1)

    def test_credits_bound_what_is_on_its_way(self):
        # One result takes 1 + 9 + 1 + 9 seconds to come back, and no more than four steps are under way.
        self.assertAlmostEqual(simulate.pipeline([[1.0] * 8, [1.0] * 8], 0, [1] * 8, 1.0, 9.0, 0.0), 20 + 20 + 3)

    def test_split_is_the_best_one(self):
        self.assertEqual(simulate.split([1, 1, 1, 1, 1, 0.1], 2), (3, 3))
        self.assertEqual(simulate.split([5, 1, 1, 1], 2), (1, 3))
        self.assertEqual(len(simulate.split([1] * 12, 12)), 12)

    def test_layer_times_rise_with_the_position(self):
        parts = [1.0, 2.0, 3.0, 4.0]  # of 100 tokens each
        whole = sum(simulate.layer_time(parts, 400, begin, begin + 10) for begin in range(0, 400, 10))
        self.assertAlmostEqual(whole, sum(parts), delta=0.3)
        self.assertAlmostEqual(simulate.layer_time([1.0] * 4, 400, 0, 100), 1.0)
        self.assertAlmostEqual(simulate.layer_time([1.0] * 4, 400, 1000, 1100), 1.0)
        self.assertGreater(simulate.layer_time([float(i) for i in range(1, 17)], 400, 800, 825), 16.0)

    def test_one_disturbed_part_does_not_decide_what_lies_beyond(self):
        self.assertAlmostEqual(simulate.layer_time([1.0] * 15 + [2.0], 1600, 8000, 8100), 1.0)

    def test_more_nodes_than_layers_are_not_used(self):
        measured = {"tokens": 1000, "chunk": 100, "layer_seconds": [[1.0] * 4] * 3}
        stages, seconds, slowest = simulate.simulate(measured, 8, 1000, 16, 10, 0.0, 0.0)
        self.assertEqual(stages, 3)
        self.assertAlmostEqual(slowest, 4.0)
        self.assertAlmostEqual(seconds, 0.4 * 12, places=3)


if __name__ == "__main__":
    unittest.main()
