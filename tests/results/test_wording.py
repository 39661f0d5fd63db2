"""Numbers in words where there is no interval, or no number."""

import math

from plkernel.results.statistics import mean_interval
from plkernel.results.wording import interval_text, mean_and_half_width, mean_text


def test_what_is_not_known_is_not_written() -> None:
    one = mean_interval([0.5])
    none = mean_interval([])
    assert (mean_text(one), interval_text(one)) == ("+0.5000", "")
    assert (mean_text(none), interval_text(none)) == ("not finite", "")
    assert mean_and_half_width(one, ".4f", 1) == "0.5000"
    assert mean_and_half_width(one, ".4f", 2) == "0.5000 (n = 1)"
    assert mean_and_half_width(None, ".4f", 2) == "-"
    assert mean_text(mean_interval([math.nan, 0.5])) == "not finite"
