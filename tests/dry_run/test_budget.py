"""What fits into given minutes, with made-up paces."""

import pytest

from plkernel.dry_run.budget import Due, plan, table

FIRST = Due("first", (0, 0.0), {0: 3, 1: 3, 2: 3}, 100.0)
SEARCHED = Due("searched", (10, 20.0), {0: 4, 1: 4}, 50.0)
SMALL = Due("small", (0, 0.0), {0: 2, 1: 2}, 10.0)


def test_everything_fits_into_enough() -> None:
    shares = plan([FIRST, SEARCHED, SMALL], 900 + 600 + 40)
    assert [share.seeds for share in shares] == [(0, 1, 2), (0, 1), (0, 1)]
    assert [share.runs for share in shares] == [9, 18, 4]
    assert [share.seconds for share in shares] == [900, 600, 40]
    assert not any(share.note for share in shares)


def test_what_does_not_fit_is_cut_by_seeds_and_leaves_the_rest_to_what_comes_after() -> None:
    first, searched, small = plan([FIRST, SEARCHED, SMALL], 900 + 599)
    assert (first.seeds, searched.seeds, small.seeds) == ((0, 1, 2), (0,), (0, 1))
    assert searched.note == "1 of 2 seeds"
    first, searched, small = plan([FIRST, SEARCHED, SMALL], 600 + 40)
    assert (first.seeds, searched.seeds, small.seeds) == ((0, 1), (), (0, 1))
    assert searched.note == "left out: the first seed takes 6.7 minutes"


@pytest.mark.parametrize("seconds", [0.0, 19.0, 39.0, 300.0, 500.0, 899.0, 1499.0])
def test_never_more_than_there_is_and_always_whole_seeds(seconds: float) -> None:
    rows = [FIRST, SEARCHED, SMALL]
    shares = plan(rows, seconds)
    assert sum(share.seconds for share in shares) <= seconds
    for row, share in zip(rows, shares, strict=True):
        assert share.runs == (row.search[0] if share.seeds else 0) + sum(row.runs[seed] for seed in share.seeds)


def test_what_has_ended_takes_nothing() -> None:
    half = Due("half", (0, 0.0), {0: 0, 1: 1, 2: 3}, 100.0)
    done = Due("done", (5, 20.0), {0: 0}, 100.0)
    shares = plan([half, done], 400)
    assert (shares[0].seeds, shares[0].runs, shares[0].seconds) == ((1, 2), 4, 400)
    assert (shares[1].runs, shares[1].note) == (0, "measured before")


def test_the_table_sums_up() -> None:
    last = table(plan([FIRST, SEARCHED, SMALL], 1e6)).splitlines()[-1]
    assert last.split() == ["all", "31", "25.7"]
