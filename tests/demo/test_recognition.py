"""The demo models draw what they are asked for: judged by a classifier that learned from real pictures alone."""

import pytest

from benchmarks.recognition import draw, recognised


@pytest.mark.parametrize(
    ("model", "steps", "scale", "count", "least"),
    [("glyphs", 30, 3.0, 40, 0.95), ("glyphs-fast", 4, 1.0, 100, 0.9), ("glyphs-fast", 1, 1.0, 100, 0.8)],
)  # fmt: skip
def test_digits_are_recognised(model, steps, scale, count, least):
    assert recognised(draw(model, steps, scale, count, seed=11)) >= least


def test_the_classifier_knows_noise_and_another_digit_from_what_was_asked():
    pictures = draw("glyphs-fast", 1, 1.0, 20)
    assert recognised(pictures[::-1]) < 0.5
