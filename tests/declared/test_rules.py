"""Rules in words: what they say is what the tests of a family do."""

import pytest

from plkernel.analysis.statistics.hypotheses import Claimed, deciding_test, judge
from plkernel.config.schema import Gate, Hypothesis
from plkernel.declared.rules import measure, prospects, regions, requirement, rules, statement


def hypothesis(**given: object) -> Hypothesis:
    return Hypothesis.model_validate({"name": "it helps", "arm": "a", "against": "b", "claim": "lower", **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a is lower than b (validation at the end)"),
        ({"margin": 0.005}, "a is lower than b by more than 0.005 bits per byte (validation at the end)"),
        (
            {"claim": "equal", "margin": 0.01, "metric": "test_bpb"},
            "a and b differ by less than 0.01 bits per byte (test)",
        ),
        ({"claim": "higher", "step": 1200}, "a is higher than b (validation at step 1,200)"),
    ],
)
def test_a_claim_in_words(given: dict[str, object], words: str) -> None:
    assert statement(hypothesis(**given)) == words


def test_every_metric_and_limit_has_words() -> None:
    cost = Gate(name="g", arm="a", metric="truncation_cost", bytes=1, at_least=0.1, at_most=2.0)
    assert (
        requirement(cost)
        == "a at least 0.1 and at most 2 bits per byte (cost of being given 1 byte only), mean over seeds"
    )
    assert measure(hypothesis(metric="excess_bpb")) == "validation above the floor of its corpus, at the end"


@pytest.mark.parametrize("claim", ["lower", "higher", "equal"])
@pytest.mark.parametrize("margin", [0.0, 0.25])
def test_the_regions_in_words_are_those_of_the_verdicts(claim: str, margin: float) -> None:
    """Differences that all lie where the words say, and so the interval too, have that verdict."""
    if claim == "equal" and not margin:
        return
    one = hypothesis(claim=claim, margin=margin, alpha=0.1)
    for verdict, (_, place) in regions(one).items():
        words = place.split()
        edges = [float(word) for word in words if word.lstrip("+-").replace(".", "").isdigit()]
        middle = {"below": edges[0] - 1.0, "above": edges[0] + 1.0, "between": sum(edges) / 2}[words[0]]
        values = tuple(middle + 0.001 * k for k in range(6))
        assert judge({"x": Claimed(one.claim, margin, values)}, 0.1)["x"].verdict == verdict
    assert regions(one)["confirmed"][0] == "80 %"
    assert regions(one)["refuted"][0] == ("90 %" if claim == "equal" else "80 %")


def test_rules_name_every_family_hypothesis_and_gate() -> None:
    declared = [hypothesis(), hypothesis(name="b"), hypothesis(name="c", family="side", alpha=0.2)]
    said = rules(declared, [Gate(name="learnt", arm="b", at_most=4.0)], [0, 7])
    assert said[0].endswith("over seeds 0, 7.")
    assert said[1].startswith("Family main: 2 hypotheses, alpha 0.05")
    assert said[2].startswith("Family side: 1 hypothesis, alpha 0.2")
    assert [text.split(".")[0] for text in said[4:]] == [
        "Hypothesis: it helps",
        "Hypothesis: b",
        "Hypothesis: c",
        "Gate: learnt",
    ]


def test_the_seeds_named_for_a_family_are_those_from_which_sign_flips_decide() -> None:
    said = rules([hypothesis(name=name) for name in "abc"], [], [0])[1]
    assert "has 6 to 20 seeds" in said
    assert [deciding_test([n], 3) for n in (5, 6, 20, 21)] == ["t", "sign flips", "sign flips", "t"]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "cannot decide, one seed shows no spread; 2 could by the t test, 6 by exact sign flips"),
        (
            5,
            "cannot decide by exact sign flips (smallest p x 3 = 0.094, alpha 0.05), 6 seeds could; the t test decides",
        ),
        (6, "can decide by exact sign flips (smallest p x 3 = 0.047, alpha 0.05)"),
        (21, "can decide by the t test"),
    ],
)
def test_prospects_say_whether_so_many_seeds_can_decide(seeds: int, words: str) -> None:
    (said,) = prospects([hypothesis(name=name) for name in "abc"], seeds)
    assert said.startswith(f"family main: 3 hypotheses, {seeds} seed")
    assert words in said
