"""Numbers in words, with as many digits as their interval needs, and what is not known."""

import math

import pytest

from plkernel.config.schema import Hypothesis
from plkernel.results.statistics import Estimate, mean_interval
from plkernel.results.wording import (
    interval_text,
    left_out,
    mean_and_half_width,
    mean_and_interval,
    mean_text,
    size_text,
    statement,
)


def test_what_is_not_known_is_not_written() -> None:
    one = mean_interval([0.5])
    none = mean_interval([])
    assert (mean_text(one), interval_text(one)) == ("+0.5000", "")
    assert (mean_text(none), interval_text(none)) == ("not finite", "")
    assert mean_and_half_width(one, ".4f", 1) == "0.5000"
    assert mean_and_half_width(one, ".4f", 2) == "0.5000 (n = 1)"
    assert mean_and_half_width(None, ".4f", 2) == "-"
    assert mean_text(mean_interval([math.nan, 0.5])) == "not finite"


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (0.0502, 0.0413, 0.0591, "+0.0502 (+0.0413 to +0.0591)"),
        (-0.5, -0.6, -0.4, "-0.5000 (-0.6000 to -0.4000)"),
        # half an interval of 0.00001 would read as zero with four digits
        (0.300012, 0.300002, 0.300022, "+0.300012 (+0.300002 to +0.300022)"),
        (2.0, 1.99998, 2.00002, "+2.000000 (+1.999980 to +2.000020)"),
        (2.0, 2.0, 2.0, "+2.0000 (+2.0000 to +2.0000)"),
    ],
)
def test_a_mean_has_the_digits_that_its_interval_needs(
    mean: float, low: float, high: float, text: str
) -> None:
    one = Estimate(3, mean, low, high, 1.0)
    assert mean_and_interval(one) == text
    shown, _, bounds = text.partition(" (")
    assert mean_text(one) == shown
    assert interval_text(one) == bounds.removesuffix(")")


def test_a_half_width_is_half_of_the_interval() -> None:
    assert mean_and_half_width(Estimate(3, 2.0, 1.5, 2.5, 1.0), ".4f", 3) == "2.0000 ± 0.5000"
    text = mean_and_half_width(Estimate(3, 2.0, 1.99998, 2.00002, 1.0), "+.4f", 4)
    assert text == "+2.000000 ± 0.000020 (n = 3)"


def test_bytes_are_told_in_megabytes_from_one_on() -> None:
    assert [size_text(2**power) for power in (10, 19, 20, 21)] == ["1 kB", "512 kB", "1 MB", "2 MB"]


def test_a_statement_has_its_metric_and_what_differs_from_the_defaults() -> None:
    one = Hypothesis(name="h", arm="a", metric="val_bpb", claim="lower", family="f")
    assert statement(one) == "metric val_bpb, arm a, claim lower"
    wider = one.model_copy(update={"margin": 0.5})
    assert statement(wider) == "metric val_bpb, arm a, claim lower, margin 0.5"


@pytest.mark.parametrize(
    ("places", "sentences"),
    [
        ([], []),
        (
            [("a", 7)],
            [
                "The folder has 1 finished run of seed 7, left out as the spec has seed 0 and 1"
                " alone; plkernel.experiment with --seeds 0 1 7 takes all in."
            ],
        ),
        (
            [("u", 0), ("v", 0), ("w", 0), ("x", 0), ("y", 0), ("y", 9), ("z", 9)],
            [
                "The folder has 7 finished runs of arm u, v, w, x and 2 more, left out as the spec"
                " has no such arm."
            ],
        ),
    ],
)
def test_runs_that_a_spec_leaves_out_are_counted(
    places: list[tuple[str, int]], sentences: list[str]
) -> None:
    assert left_out(places, ["a", "b"], [0, 1]) == sentences
