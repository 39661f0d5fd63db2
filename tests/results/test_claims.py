"""Claims against scipy, statsmodels, enumeration, and by simulation."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from plkernel.results import claims as ours
from plkernel.results.claims import Claimed

nan = math.nan


def sample(n, shift=0.0, seed=0):
    return np.random.default_rng([n, seed]).normal(shift, 0.01, n)


@pytest.mark.parametrize("n", [4, 7, 12])
@pytest.mark.parametrize(
    ("claim", "margin", "true"),
    [
        ("lower", 0.005, -0.02),
        ("higher", 0.0, 0.01),
        ("equal", 0.01, 0.002),
        ("lower_by_less", 0.05, -0.025),
        ("higher_by_less", 0.05, 0.025),
    ],
)
def test_power_is_the_share_of_drawn_studies_that_confirm(n, claim, margin, true):
    """By t tests of scipy in 20,000 studies, and of 7 seeds by the sign flips that decide, in
    1,000.
    """
    drawn = np.random.default_rng(n).normal(true, 0.01, (20_000, n))
    alpha = 0.05 / 2
    power = ours.power(claim, margin, true, 0.01, n, 2)
    if n == 7:
        decided = [
            ours.claim_p(Claimed(claim, margin, one), "sign flips")[0] <= alpha
            for one in drawn[:1000]
        ]
        assert power == pytest.approx(np.mean(decided), abs=0.04)
        return
    sides = {"lower": [(-margin, "less")], "higher": [(margin, "greater")]}
    sides["equal"] = [(-margin, "greater"), (margin, "less")]
    sides["lower_by_less"] = [(-margin, "greater"), (0.0, "less")]
    sides["higher_by_less"] = [(0.0, "greater"), (margin, "less")]
    p = [
        stats.ttest_1samp(drawn, bound, axis=1, alternative=side).pvalue
        for bound, side in sides[claim]
    ]
    assert power == pytest.approx(np.mean(np.max(p, axis=0) <= alpha), abs=0.012)
    if claim == "lower":
        exact = stats.nct.sf(stats.t.ppf(1 - alpha, n - 1), n - 1, 1.5 * math.sqrt(n))
        assert power == pytest.approx(exact, abs=1e-4)
    powers = [
        ours.power("higher", 0.0, ours.effect_needed(many, 2), 1.0, many, 2) for many in (n, 9 * n)
    ]
    assert powers == pytest.approx([0.8, 0.8], abs=0.002)
    assert math.isnan(ours.power(claim, margin, true, 0.01, 1))


@pytest.mark.parametrize(("n", "pilot"), [(4, 5), (8, 3), (11, 4)])
@pytest.mark.parametrize("claim", ["lower", "equal", "lower_by_less"])
def test_power_from_a_pilot_averages_over_what_its_spread_leaves_open(n, pilot, claim):
    """Against studies whose standard deviation is drawn too: sd^2 nu over chi square of nu."""
    margin = 0.02
    true = {"lower": -0.05, "equal": 0.0, "lower_by_less": -0.01}[claim]
    rng = np.random.default_rng([n, pilot])
    sds = 0.01 * np.sqrt((pilot - 1) / rng.chisquare(pilot - 1, 4_000))
    drawn = rng.normal(true, sds[:, None], (4_000, n))
    test = ours.deciding_test([n], 1)
    decided = [ours.claim_p(Claimed(claim, margin, one), test)[0] <= 0.05 for one in drawn]
    power = ours.power(claim, margin, true, 0.01, n, pilot=pilot)
    assert power == pytest.approx(np.mean(decided), abs=0.03)
    known = ours.power(claim, margin, true, 0.01, n)
    assert abs(power - known) > 0.004, "differs from that of a known spread"


def test_a_lead_by_less_than_the_margin_excludes_zero_and_the_margin():
    """The 90 % interval of the mean lies between the two exactly where it is confirmed."""
    data = sample(8, -0.02)
    for test in ("t", "sign flips"):
        low, high = ours.interval(data, 0.05, test)
        for claim, sign in (("lower_by_less", 1.0), ("higher_by_less", -1.0)):
            for margin in (-0.9 * low, -1.1 * low):
                p = ours.claim_p(Claimed(claim, margin, sign * data), test)[0]
                assert (p <= 0.05) == (high < 0.0 and low > -margin)
            shifted = data - high + 0.001
            assert ours.claim_p(Claimed(claim, 0.1, sign * shifted), test)[0] > 0.05
            beyond = ours.claim_p(Claimed(claim, 0.001, sign * data), test)[1]
            assert beyond <= 0.05, "a lead by more refutes it"


# Sign flips and claims


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sign_flips_are_the_share_of_all_patterns(n):
    data = sample(n, -0.005)
    signs = np.array([*product((-1.0, 1.0), repeat=n)])
    for bound in (0.0, -0.006, 0.004):
        assert ours.sign_flip_below(data, bound) == np.mean(
            signs @ (data - bound) <= (data - bound).sum() + 1e-12
        )
    if n > 2:
        wanted = stats.permutation_test(
            (data,), np.mean, permutation_type="samples", alternative="less"
        )
        assert ours.sign_flip_below(data) == pytest.approx(wanted.pvalue)
    ties = ours.sign_flip_below([-0.1, -0.2, -0.3 + 1e-17, 0.0]), ours.sign_flip_below([0.0] * 3)
    assert ties == (2 / 16, 1.0), "they count against the effect"


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1 / 64])
def test_sign_flip_bounds_are_where_the_tests_begin_to_reject(alpha):
    data = sample(7, 0.01)
    step = 1e-9
    low, high = ours.interval(data, alpha, "sign flips")
    assert (
        ours.sign_flip_below(data, high + step) <= alpha < ours.sign_flip_below(data, high - step)
    )
    assert (
        ours.sign_flip_below(-data, -low + step) <= alpha < ours.sign_flip_below(-data, -low - step)
    )
    assert ours.interval(sample(4), 0.05, "sign flips") == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("n", "shift", "margin"), [(3, -0.02, 0.005), (8, -0.004, 0.002), (40, 0.001, 0.1)]
)
def test_one_sided_t_tests_and_equivalence_are_those_of_statsmodels(n, shift, margin):
    data = sample(n, shift)
    for claim, bound, ways in (
        ("lower", -margin, ("smaller", "larger")),
        ("higher", margin, ("larger", "smaller")),
    ):
        wanted = [DescrStatsW(data).ttest_mean(bound, alternative=way)[1] for way in ways]
        assert ours.claim_p(Claimed(claim, margin, data), "t") == pytest.approx(wanted, rel=1e-9)
    arm = sample(n, shift, 1)
    base = sample(n, 0.0, 2)
    wanted, lower, upper = ttost_paired(arm, base, -margin, margin)
    p, opposite = ours.claim_p(Claimed("equal", margin, arm - base), "t")
    assert p == pytest.approx(wanted, rel=1e-9)
    assert opposite == pytest.approx(min(1.0, 2 * min(1 - lower[1], 1 - upper[1])), rel=1e-6)


@pytest.mark.parametrize(("n", "heavy"), [(3, False), (8, True)])
def test_false_confirmations_and_refutations_of_a_family_stay_below_alpha(n, heavy):
    """Four claims on the border between true and false, over differences that share a baseline."""
    rng = np.random.default_rng([n, heavy])
    alpha = 0.1
    repetitions = 400
    margin = 0.5
    edges = {"lower": -margin, "higher": margin, "equal": margin, "lower by none": 0.0}
    false = {"confirmed": 0, "refuted": 0}
    for _ in range(repetitions):
        noise = rng.standard_t(2, (5, n)) if heavy else rng.normal(size=(5, n))
        family = {
            name: Claimed(
                name.split()[0], 0.0 if "none" in name else margin, edge + noise[at] - noise[4]
            )
            for at, (name, edge) in enumerate(edges.items())
        }
        verdicts = {one.verdict for one in ours.judge_family(family, alpha).values()}
        for kind in false:
            false[kind] += kind in verdicts
    for kind, times in false.items():
        assert times / repetitions <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / repetitions), kind
        assert times > 0.01 * repetitions, "a test that never rejects shows nothing"


@pytest.mark.parametrize("alpha", [0.0, 0.5, nan])
def test_alpha_lies_between_zero_and_a_half(alpha):
    with pytest.raises(ValueError, match=f"alpha must be above 0 and below 0.5, got {alpha}"):
        ours.judge_family({}, alpha)


def test_the_correction_counts_every_member_of_the_family():
    one = Claimed("lower", 0.0, [-0.02, -0.021, -0.019, -0.022, -0.02, -0.018])
    short = Claimed("lower", 0.0, [0.1])
    missing = {name: Claimed("lower", 0.0, []) for name in "bc"}
    for family, p in (({}, 1 / 64), (missing, 3 / 64)):
        judged = ours.judge_family({"a": one, **family})
        assert (judged["a"].p, judged["a"].p_family, judged["a"].verdict) == (
            1 / 64,
            p,
            "confirmed",
        )
    four = ours.judge_family({"a": one, **missing, "d": short})
    assert (four["a"].test, four["a"].verdict) == ("t", "confirmed"), (
        "4 / 64 > 0.05: the sign flips could not reject"
    )
    assert (
        ours.judge_family({"a": Claimed("lower", 0.0, [-0.02, -0.0201])})["a"].verdict
        == "confirmed"
    ), "two differ enough"
    for judged in (
        four["b"],
        four["d"],
        ours.judge_family({"a": Claimed("lower", 0.0, [0.1, nan])})["a"],
    ):
        assert (judged.verdict, math.isnan(judged.p_family), math.isnan(judged.low)) == (
            "undecided",
            True,
            True,
        )


@pytest.mark.parametrize(("m", "seeds"), [(1, 5), (3, 6), (28, 10)])
def test_sign_flips_decide_where_holm_can_reject_the_smallest_p(m, seeds):
    for n in (seeds - 1, seeds):
        assert (m * ours.sign_flip_below(-1.0 - np.arange(n)) <= 0.05) == (n == seeds)
        assert ours.deciding_test([n, n + 3], m) == ("sign flips" if n == seeds else "t")
    assert ours.deciding_test([21], 1) == ours.deciding_test([], 1) == "t"


@pytest.mark.parametrize(
    ("seeds", "m", "alpha", "test"),
    [
        ([5], 1, 0.05, "sign flips"),
        ([4], 1, 0.05, "t"),
        ([10, 20], 28, 0.05, "sign flips"),
        ([10, 21], 28, 0.05, "t"),
        ([9, 20], 28, 0.05, "t"),
        ([2], 1, 0.25, "sign flips"),
        ([], 1, 0.05, "t"),
    ],
)
def test_the_test_follows_from_the_numbers_of_seeds(seeds, m, alpha, test):
    """Sign flips where 2**-n of the fewest is at most alpha / m, and the most are 20."""
    assert ours.deciding_test(seeds, m, alpha) == test


@pytest.mark.parametrize(
    ("confirming", "refuting", "verdict"),
    [
        (0.05, 1.0, "confirmed"),
        (0.051, 0.05, "refuted"),
        (0.051, 0.051, "undecided"),
        (0.01, 0.01, "confirmed"),
    ],
)
def test_a_p_of_alpha_decides(confirming, refuting, verdict):
    assert ours._verdict(confirming, refuting, 0.05) == verdict


@pytest.mark.parametrize(
    ("differences", "testable"),
    [([], False), ([1.0], False), ([1.0, 2.0], True), ([1.0, math.nan], False)],
)
def test_a_claim_is_tested_on_two_finite_differences_or_more(differences, testable):
    one = ours.Claimed("lower", 0.0, differences)
    assert one.testable is testable
    judged = ours.judge_family({"a": one})["a"]
    assert judged.n == len(differences)
    assert math.isnan(judged.p) is not testable
    if len(differences) == 1:
        assert (judged.mean, judged.verdict) == (1.0, "undecided")


@pytest.mark.parametrize(("n", "m"), [(3, 1), (8, 1), (8, 3), (12, 1)])
def test_the_effect_needed_is_the_least_with_power_eight_in_ten(n, m):
    """To a thousandth of it, by which it is searched for."""
    effect = ours.effect_needed(n, m)

    def power(size):
        return ours.power("lower", 0.5, -0.5 - size, 1.0, n, m)

    assert power(effect) >= 0.8 - 1e-9
    assert power(0.98 * effect) < 0.8


def test_power_needs_two_seeds_and_is_the_same_for_mirrored_claims():
    assert math.isnan(ours.power("lower", 0.0, -1.0, 1.0, 1))
    for claim, mirrored in (("lower", "higher"), ("lower_by_less", "higher_by_less")):
        own = ours.power(claim, 1.0, -0.5, 0.1, 5)
        assert ours.power(mirrored, 1.0, 0.5, 0.1, 5) == own


def test_the_opposite_of_a_claim_with_two_bounds_is_doubled_and_at_most_one():
    inside, beyond = ours.claim_p(ours.Claimed("equal", 1.0, [0.1, -0.1, 0.2]), "t")
    assert inside < 0.05
    assert beyond == 1.0
    above = ours.Claimed("equal", 1.0, [2.0, 2.1, 2.2])
    inside, beyond = ours.claim_p(above, "t")
    assert inside > 0.99
    assert beyond == pytest.approx(2 * ours.claim_p(above._replace(claim="higher"), "t")[0])


@pytest.mark.parametrize(
    ("seeds", "verdict"), [(2, "undecided"), (3, "undecided"), (6, "confirmed")]
)
def test_differences_without_a_spread_say_no_more_than_their_signs(
    seeds: int, verdict: str
) -> None:
    """As of a few answers that are the same in every seed: a t test would call them certain."""
    claim = Claimed("equal", 0.05, [0.0] * seeds)
    judged = ours.judge_family({"same": claim}, 0.05)["same"]
    assert judged.verdict == verdict
    assert ours.t_below([-0.1] * seeds) == 2.0**-seeds
    assert ours.t_below([0.1] * seeds) == ours.t_below([0.0] * seeds) == 1.0
    rounded = [1.13 - 1.23, 2.24 - 2.34] * seeds
    assert ours.t_below(rounded) == 2.0 ** -(2 * seeds)
