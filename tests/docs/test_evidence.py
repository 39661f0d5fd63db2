"""What the pages of docs/ say beyond their rendered numbers is what the committed rows say."""

import itertools
import json
import math
import re
import statistics
from functools import cache, partial
from math import log2, sqrt
from pathlib import Path
from typing import Any

import long_windows
import minima
import numpy as np
import post_parts
import pytest
import recall_tests
import render
import sentences
import trade
from scipy.stats import t as student_t
from sentences import blocks, doses, exponents, paired, record, studies

import plkernel
from plkernel.config.reading import load_spec
from plkernel.results.comparison import compare
from plkernel.results.convergence import Starts, convergence, learnt_kernels_figure
from plkernel.results.page import Table, sections
from plkernel.results.rate_curves import curve_results, rate_curve
from plkernel.results.statistics import paired_difference

RECORDS = Path(sentences.__file__).parent
ROOT = RECORDS.parents[1]


def without(starts: Starts, name: str) -> Starts:
    return {arm: memories for arm, memories in starts.items() if not arm.startswith(name)}


@cache
def finished_rows(study: str) -> list[dict[str, Any]]:
    lines = (RECORDS / study / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["status"] == "finished"]


def final_losses(rows: list[dict[str, Any]], arm: str) -> list[float]:
    """The last validation losses of the runs of an arm."""
    return [row["result"]["final_val_bpb"] for row in rows if row["arm"] == arm]


def mean_losses(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The last validation loss of every arm, mean over its runs."""
    return {arm: statistics.fmean(final_losses(rows, arm)) for arm in {row["arm"] for row in rows}}


def verdicts(study: str) -> list[str]:
    """The verdicts on the hypotheses of a study, in the order of its spec."""
    report = sentences.record(f"{study}/report/table.json")
    return [row["verdict"] for row in report["declared"]["hypotheses"]]


def kernel_shapes(one: dict[str, Any], block: int) -> list[float]:
    """Octaves from a block's kernel at one byte back to that at each further lag up to 256."""
    kernel = one["kernel"]["blocks"][block]
    return [log2(value / kernel[0]) for value in kernel[1:9]]


def half_life_octaves(one: dict[str, Any], block: int) -> list[float]:
    return [log2(value) for value in one["half_life_quantiles"][block]]


def spread_by_hand(study: str, arms: list[str], at: str, kernel: bool) -> tuple[float, float]:
    """Spread over starts and of seeds alone, in loops over the rows as they are in the file."""
    octaves = kernel_shapes if kernel else half_life_octaves
    rows = finished_rows(study)
    ends = {arm: [row[at] for row in rows if row["arm"] == arm] for arm in arms}
    count = len(ends[arms[0]][0]["half_life_quantiles"])
    spreads = []
    of_seeds_alone = []
    for block in range(count):
        for place in range(len(octaves(ends[arms[0]][0], block))):
            values = [[octaves(one, block)[place] for one in ends[arm]] for arm in arms]
            spreads.append(float(np.std([statistics.fmean(seeds) for seeds in values])))
            errors = [float(np.var(seeds, ddof=1)) / len(seeds) for seeds in values]
            share = (len(arms) - 1) / len(arms)
            of_seeds_alone.append(sqrt(statistics.fmean(errors) * share))
    return statistics.fmean(spreads), statistics.fmean(of_seeds_alone)


def test_spreads_are_those_of_the_rows() -> None:
    for (name, _), starts in blocks().items():
        for kernel, found in zip((False, True), convergence(starts), strict=True):
            before, _ = spread_by_hand(name, list(starts), "first", kernel)
            after, seeds = spread_by_hand(name, list(starts), "last", kernel)
            expected = (before, after, seeds)
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (name, kernel)


def test_the_usual_start_is_where_learning_ends() -> None:
    starts = without(blocks()["memory-text", "ema"], "quantile")
    ends = {arm: exponents(after) for arm, (_, after) in starts.items()}
    inside = [arm for arm, found in ends.items() if ((found > 0.915) & (found < 1.035)).all()]
    assert len(starts) == 6
    assert set(starts) - set(inside) == {"short_ema"}


def test_of_six_cases_the_exponent_1_6_is_worst_in_five() -> None:
    worst = [row.index(max(row)) for row in doses()]
    assert len(worst) == 6
    assert worst.count(sentences.DOSES.index("1.6")) == 5


def test_starts_are_grouped_by_block_and_by_whether_they_are_learnt() -> None:
    assert [block for name, block in blocks() if name == "memory-lags"] == ["lags-0.7", "lags-1.3"]
    assert "short-frozen_lags-0.7" not in blocks()["memory-lags", "lags-0.7"]
    assert len(blocks()["memory-dose", "lags-0.7, frozen, not learnt"]) == 6
    assert [len(blocks()["memory-shortness", gain]) for gain in ("ema", "lru")] == [9, 5]
    without = {"quick", "schemes", "memory-bible", *sentences.STOPPED}
    assert {name for name, _ in blocks()} == studies().keys() - without


def test_the_figure_has_every_start_before_and_after() -> None:
    starts = blocks()["memory-markov", ""]
    above, below = learnt_kernels_figure({"Markov": starts}).axes
    for time, axes in enumerate((above, below)):
        for line, memories in zip(axes.get_lines(), starts.values(), strict=True):
            values = np.asarray(line.get_ydata())
            assert np.log(values) == pytest.approx(
                memories[time].log_kernels().mean(axis=0), abs=1e-9
            )


@pytest.mark.parametrize(("step", "excluding_zero"), [("3000", 3), ("500", 0)])
def test_of_six_leads_over_the_better_rate_three_exclude_zero_and_none_after_1_mb(
    step: str, excluding_zero: int
) -> None:
    arms = [f"{longest}{scale}_ema" for longest in (32, 8, 4) for scale in ("", "-matched")]
    leads = [paired("memory-shortness", arm, "memory-text/log-spaced_ema", step) for arm in arms]
    assert sum(lead.high < 0 for lead in leads) == excluding_zero


def test_on_test_text_short_half_lives_are_as_far_behind_as_long_ones_are_ahead() -> None:
    short, long = (sentences.change("memory-far", arm, at="test_bpb") for arm in ("short", "long"))
    assert f"{short:.3f}" == f"{-long:.3f}"


def test_the_lead_of_the_recommended_start_is_smaller_at_each_larger_size() -> None:
    sizes = ("0.1M", "0.4M", "1.7M")
    leads = [sentences.lead("ladder-gpu", f"concentrated-published_{size}") for size in sizes]
    leads.append(sentences.lead("published-gpu", "concentrated-published_good"))
    assert leads == sorted(leads, reverse=True)
    assert leads[-1] > 0


def test_no_start_of_mamba_2_at_two_rates_is_significant_after_correction() -> None:
    arms = record("models-mamba2-rates/report/table.json")["arms"]
    compared = [row["p_corrected"] for row in arms if row["against"]]
    assert len(compared) == 4
    assert min(compared) > 0.05


def test_rates_of_a_search_beside_the_best_one_are_all_that_were_tried() -> None:
    lines = (RECORDS / "memory-far/tuning/rows.jsonl").read_text().splitlines()
    rates = {json.loads(line)["arm"].rpartition("-")[2] for line in lines}
    assert rates == {"0.001", "0.002", "0.004"}


def test_the_docstring_of_decay_param_groups_says_what_the_rows_say() -> None:
    documented = " ".join(str(plkernel.decay_param_groups.__doc__).split())
    cost = sentences.change("decays-train", "all_ssm")
    others = sentences.largest_change("decays-train", "all_goose", "all_mamba2")
    rates = sentences.largest_change("decays-train", "frozen_*", "slow_*", "fast_*")
    small = f"small models of RWKV-7 and Mamba-2 lose {others:.4f} or less"
    assert f"{cost:.3f} bits per byte worse; {small}" in documented
    assert f"rates from 0 to 10 times the others' end within {rates:.4f}" in documented


def test_slopes_and_drift_of_texts_are_as_the_page_on_measuring_tells_them() -> None:
    texts = {one["corpus"]["name"]: one for one in record("measure/texts.json")["texts"]}
    source = texts.pop("stdlib")["information"]
    for name, one in texts.items():
        slopes = dict(zip(one["local_slopes"]["lags"], one["local_slopes"]["slopes"], strict=True))
        assert [slopes[2], slopes[10]] == pytest.approx([1.4, 3.0], abs=0.15), name
        assert max(slope for lag, slope in slopes.items() if 100 <= lag <= 500) < 1, name
    at = source["values"][source["lags"].index(139)]
    assert source["drift"] / at == pytest.approx(0.5, abs=0.05)
    assert source["drift"] > source["values"][-1] / 2


def test_in_bfloat16_the_longer_half_of_the_half_lives_of_the_ssm_does_not_move() -> None:
    for run in studies()["decays-train"].finished("bfloat16_ssm"):
        for before, after in zip(
            *(at["half_life_quantiles"] for at in (run.first, run.last)), strict=True
        ):
            assert before[3:] == after[3:]
            assert before[:3] != after[:3]


DESIGN = {
    "evidence/measured": {"0.3"},
    "evidence/decays": {"0.1", "0.5"},
    "evidence/state": set(),
    "evidence/fits": {"1.15", "0.9975"},
    "evidence/speed": set(),
    "evidence/starts": (
        {"0.7", "1.3", "0.4", "0.6", "3.7", "0.01", "1.6", "1.2", "0.02", "0.05"}
        | {"2.26", "1.13", "0.5", "0.8", "2.5", "4.9"}
    ),
    "evidence/rates": {
        "0.02",
        "0.020",
        "0.03",
        "0.05",
        "0.032",
        "0.039",
        "0.041",
        "0.045",
        "0.082",
        "0.1",
        "0.363",
        "0.290",
        "1.14",
        "1.2",
        "4.9",
    },
    "evidence/models": {
        "1.15",
        "0.5",
        "0.4",
        "0.03",
        "0.01",
        "0.1",
        "0.001",
        "0.02",
        "0.23",
    },
    "evidence/audit": {"0.039", "0.1", "0.071", "2.5", "1.8", "0.01", "0.02", "1.2", "4.9"},
    "evidence/claims": {"2604.07658", "3.5", "4.1", "2.0"},
    "evidence/post-rwkv7": {"2.2", "2.5", "3.5", "0.03"},
    "evidence/forest": set(),
    "evidence/index": {"0.01", "0.02", "1.2", "4.9"},
}
"""Numbers that are no results: exponents, lengths and margins that were chosen, what is cited."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
END = "<!-- / -->"


def test_every_number_between_comments_is_rendered_and_every_function_is_used() -> None:
    texts = [page.read_text() for page in PAGES]
    found = [match for text in texts for match in sentences.MARKED.finditer(text)]
    assert len(found) == sum(text.count(END) for text in texts)
    assert {match[2] for match in found} == set(sentences.NUMBERS)


def test_no_line_begins_with_the_comment_of_a_number() -> None:
    """Markdown takes such a line for a block of HTML, which ends the paragraph."""
    begun = re.compile(r"[\s>*-]*(\d+\. )?" + sentences.MARKED.pattern)
    for page in PAGES:
        for line in page.read_text().splitlines():
            assert not begun.match(line), (page, line)


def test_a_changed_number_in_a_sentence_is_noticed() -> None:
    comment = "ahead by <!-- lead-interval memory-shortness 8_lru .3f -->{}<!-- / --> bits"
    stale = comment.format("0.013 (0.007 to 0.018)")
    assert sentences.fill(stale) == comment.format("0.012 (0.007 to 0.018)")


@pytest.mark.parametrize("page", DESIGN)
def test_no_other_number_is_in_the_sentences(page: str) -> None:
    """Decimals outside of tables, commands, figures and comments are choices, not results."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    text = sentences.MARKED.sub("", text)
    text = re.sub(r"```.*?```|<!-- record.*?<!-- end -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^\|.*$|^`python -m.*$|!\[.*?\]\(.*?\)", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\(\S+?\)", "]", text)
    assert set(re.findall(r"\d+\.\d+", text)) == DESIGN[page]


def test_leads_in_recall_are_those_of_the_rows() -> None:
    """Differences seed by seed, and means over the seeds of the search, in loops over the rows."""
    found: dict[str, dict[int, float]] = {"post": {}, "official": {}}
    for row in finished_rows("recall-post"):
        if row["arm"] in found:
            (test,) = [
                one
                for one in row["result"]["recall"]["tests"]
                if (one["test"], one["length"]) == ("persistence", 1024)
            ]
            found[row["arm"]][row["seed"]] = 100 * test["accuracy"]
    leads = [found["post"][seed] - found["official"][seed] for seed in range(16)]
    error = statistics.stdev(leads) / 4
    mean = statistics.fmean(leads)
    expected = (mean, mean - 2.1314 * error, mean + 2.1314 * error)
    lead = sentences.recalled_lead("recall-post", "post", "official", "8")
    assert lead == pytest.approx(expected, abs=1e-3)
    rows = sentences.record("recall-post/search-beyond.json")["rows"]
    means = {}
    for arm in found:
        at_rate = [row for row in rows if (row["arm"], row["rate"]) == (arm, 0.005)]
        shares = [row["accuracy"] for row in at_rate if row["length"] == 1024]
        assert len(shares) == 4
        means[arm] = 25 * sum(shares)
    lead_at_rate = sentences.searched_lead("recall-post", "post", "official", "0.005")
    assert lead_at_rate == pytest.approx(means["post"] - means["official"])


LEADS = [(start, rate) for start in ("official-t2", "scaling", "post") for rate in ("slow", "fast")]
"""Arms of recall-capacity that are held against the official initialisation."""


def leads(start: str, rate: str, times: str, **given: str) -> sentences.Estimate:
    """Return what recalled-lead says of an arm of recall-capacity."""
    arms = (f"{start}_{rate}", f"official_{rate}")
    return sentences.recalled_lead("recall-capacity", *arms, times, **given)


def test_leads_in_recall_of_mixed_pairs_are_not_established() -> None:
    assert all(leads(*one, "8").value > 0 for one in LEADS)
    declared = sentences.record("recall-capacity/report/table.json")["declared"]["hypotheses"]
    beyond = {one["name"]: one for one in declared if one["metric"] == "persistence"}
    assert len(beyond) == 3
    for one in beyond.values():
        assert one["low"] > 0
        assert one["verdict"].startswith("undecided")
    failed = sentences.accuracies("recall-capacity", "persistence")["official_fast"]
    assert all(0.4 < by_seed[6] < 0.6 for by_seed in failed.values())


def test_far_pairs_are_where_post_leads_in_recall_of_mixed_pairs() -> None:
    by_distance = {
        rate: {
            end: leads("post", rate, "8", distance=str(end))
            for end in recall_tests.by_group(
                recall_tests.tests_of("recall-capacity", "persistence")[f"post_{rate}"][8]
            )
        }
        for rate in ("slow", "fast")
    }
    for found in by_distance.values():
        assert [*found] == [32, 64, 128, 256, 512, 1024, 2048, 4096]
        assert all(lead.value < 0 for end, lead in found.items() if end <= 512)
        assert all(lead.value > 10 for end, lead in found.items() if end > 1024)
    for start in ("scaling", "post"):
        far = {
            (rate, end): leads(start, rate, "8", distance=str(end))
            for rate in by_distance
            for end in (2048, 4096)
        }
        assert all(11 < lead.value < 19 for lead in far.values())
        assert all(lead.low > 0 for (rate, _), lead in far.items() if rate == "slow")
    rows = [
        {
            row["seed"]: one["distance"]["accuracy"][one["distance"]["up_to"].index(4096)]
            for row in finished_rows("recall-capacity")
            if row["arm"] == arm
            for one in row["result"]["recall"]["tests"]
            if (one["test"], one["length"]) == ("persistence", 4096)
        }
        for arm in ("post_slow", "official_slow")
    ]
    differences = [100 * (rows[0][seed] - rows[1][seed]) for seed in range(8)]
    assert by_distance["slow"][4096].value == pytest.approx(statistics.fmean(differences))


def test_other_seeds_confirm_far_pairs_and_not_what_else_was_found_by_looking() -> None:
    declared = sentences.record("recall-far/report/table.json")["declared"]["hypotheses"]
    verdicts = {one["name"]: (one["verdict"], one["mean"]) for one in declared}
    at = "at 2,049 to 4,096 bytes"
    for name in (
        f"PoST leads the official initialisation {at}",
        f"scaling without order leads the official initialisation {at}",
        f"scaling leads the same spectrum without scaling {at}",
    ):
        verdict, mean = verdicts.pop(name)
        assert verdict == "confirmed"
        assert mean > 0.11
    assert verdicts.pop("PoST leads the official initialisation at any distance")[0] == "confirmed"
    assert len(verdicts) == 2
    for verdict, mean in verdicts.values():
        assert verdict == "undecided"
        assert abs(mean) < 0.005
    alone = sentences.accuracies("recall-far", "persistence")["spectrum"]
    assert all(by_seed[14] < 0.1 for by_seed in alone.values())
    assert sentences.record("recall-far/spec.json")["seeds"] == list(range(8, 18))


def shares_at(study: str, arm: str, times: int, distance: int) -> dict[int, float]:
    """Right answers in % of persistence at a length, in the group of a distance, by seed."""
    found = {}
    for row in finished_rows(study):
        length = times * row["config"]["train"]["context"]
        for one in row["result"]["recall"]["tests"]:
            if (row["arm"], one["test"], one["length"]) == (arm, "persistence", length):
                place = one["distance"]["up_to"].index(distance)
                found[row["seed"]] = 100 * one["distance"]["accuracy"][place]
    return found


def test_parts_of_post_are_on_one_page_as_the_rows_have_them() -> None:
    header, lines = post_parts.far_leads()
    found = {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}
    official = shares_at("recall-far", "official", 8, 4096)
    scaling = shares_at("recall-far", "scaling", 8, 4096)
    differences = [scaling[seed] - official[seed] for seed in range(8, 18)]
    mean = statistics.fmean(differences)
    half = student_t.ppf(0.975, 9) * statistics.stdev(differences) / sqrt(10)
    shown = f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"
    assert found["RWKV-7, 3.5e-3"]["scaling"] == shown


def test_arms_of_the_page_on_post_are_those_of_the_studies() -> None:
    for tested in (*post_parts.RECALL, *post_parts.TEXT):
        arms = {tested.own, *tested.arms.values()}
        assert arms <= set(studies()[tested.study].arms)


def test_post_loses_by_reading_on_and_the_longer_curve_of_rwkv7_hardly() -> None:
    header, lines = post_parts.reading_on()
    for line in lines:
        cells = dict(zip(header[1:], line[1:], strict=True))
        means = {name: float(cell.split()[0]) for name, cell in cells.items() if cell != "-"}
        own = means[post_parts.OWN]
        is_rwkv7 = line[0].startswith("RWKV-7")
        if post_parts.POST in means:
            assert means[post_parts.POST] - own > (0.15 if is_rwkv7 else 1.5)
        if is_rwkv7:
            assert means[post_parts.LONGER] - own < 0.1


def test_seeds_behind_are_those_of_the_rows() -> None:
    far, near = (
        {
            seed: share - shares_at("recall-far", "official", 8, distance)[seed]
            for seed, share in shares_at("recall-far", "post", 8, distance).items()
        }
        for distance in (4096, 32)
    )
    assert sum(lead < 0 for lead in far.values()) == 3
    assert sum(lead < 0 for lead in near.values()) == 7
    assert sorted(near.values())[-1] == pytest.approx(10, abs=0.5)
    kept = {seed: lead for seed, lead in far.items() if seed >= 12}
    assert statistics.fmean(kept.values()) == pytest.approx(15, abs=0.5)


def test_the_leads_of_the_longer_curve_and_of_scaling_differ_in_kind() -> None:
    """The one is there at the length of training; what a lead gains is from there to 8 times."""
    at_t, at_8 = (
        {arm: shares_at("recall-far", arm, times, 512 * times) for arm in ("post", "official")}
        for times in (1, 8)
    )
    gains = [
        at_8["post"][seed] - at_t["post"][seed] - at_8["official"][seed] + at_t["official"][seed]
        for seed in range(8, 18)
    ]
    post, scaling, longer = (
        sentences.lead_gained("recall-far", arm, "official")
        for arm in ("post", "scaling", "official-t2")
    )
    assert post.value == pytest.approx(statistics.fmean(gains))
    assert post.low > 0
    assert scaling.low > 0
    assert longer.low < 0 < longer.high
    there = sentences.recalled_lead("recall-far", "official-t2", "official", "1", distance="512")
    assert there.low > 0
    official = sentences.accuracies("recall-far", "persistence")["official"][1]
    assert np.mean([*official.values()]) == pytest.approx(5 / 6, abs=0.02)
    assert np.mean([*at_t["official"].values()]) == pytest.approx(50, abs=2)


def test_at_twice_the_learning_rate_post_leads_and_the_longer_curve_is_undecided() -> None:
    declared = record("recall-far-fast/report/table.json")["declared"]["hypotheses"]
    verdicts = {one["name"]: one["verdict"].partition(":")[0] for one in declared}
    confirmed = {name for name, verdict in verdicts.items() if verdict == "confirmed"}
    at = "at 2,049 to 4,096 bytes"
    assert confirmed == {
        f"PoST leads the official initialisation {at}",
        f"scaling without order leads the official initialisation {at}",
        "PoST leads the official initialisation at any distance",
    }
    assert {verdicts[name] for name in verdicts.keys() - confirmed} == {"undecided"}
    leads_by_seed = {
        seed: (
            shares_at("recall-far", "post", 8, 4096)[seed]
            - shares_at("recall-far", "official-t2", 8, 4096)[seed]
            + shares_at("recall-far-fast", "post_fast", 8, 4096)[seed]
            - shares_at("recall-far-fast", "official-t2_fast", 8, 4096)[seed]
        )
        / 2
        for seed in range(8, 18)
    }
    of_both = sentences.lead_at_both_rates("post", "official-t2", "8", distance="4096")
    assert of_both.value == pytest.approx(statistics.fmean(leads_by_seed.values()))
    half = student_t.ppf(0.975, 9) * statistics.stdev(leads_by_seed.values()) / sqrt(10)
    assert of_both.high - of_both.value == pytest.approx(half)
    assert of_both.low < 0 < of_both.high
    for start in ("official", "official-t2", "scaling", "post"):
        slow = sentences.accuracies("recall-far", "persistence")[start][1]
        fast = sentences.accuracies("recall-far-fast", "persistence")[f"{start}_fast"][1]
        assert statistics.fmean(slow.values()) > statistics.fmean(fast.values())


THREE_CURVES = ["concentrated", "concentrated-matched", "short-matched"]
"""Curves of `rates` that are compared with the baseline."""


def test_starts_at_their_best_rates_stand_between_counts_of_three_and_four_bytes() -> None:
    three, four = (sentences.counts("rates", order) for order in ("3", "4"))
    for start in ("log-spaced", *THREE_CURVES):
        best = min(
            sentences.loss("rates", f"{start}_{rate}") for rate in ("0.008", "0.016", "0.032")
        )
        assert four < best < three


@pytest.mark.parametrize(("text", "told"), [("val", ["short-matched"]), ("test", THREE_CURVES)])
def test_leads_that_survive_the_correction_for_three_curves(text: str, told: list[str]) -> None:
    """Holm's correction by hand."""
    p = {name: sentences.minimum_difference("rates", name, text).p_value for name in THREE_CURVES}
    corrected = {}
    largest = 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, (3 - place) * p[name])
        corrected[name] = largest
    for name in THREE_CURVES:
        assert sentences.minimum_p("rates", name, text) == pytest.approx(corrected[name])
    assert [name for name in THREE_CURVES if corrected[name] < 0.05] == told


def test_arms_with_leads_begin_with_the_longest_half_lives() -> None:
    starts = {
        row["arm"]: row["first"]["half_life_quantiles"] for row in finished_rows("recall-far")
    }
    for arm in ("official-t2", "scaling", "post"):
        assert max(one[-1] for one in starts[arm]) == pytest.approx(2.2e6, rel=0.01)
    assert [round(starts[arm][0][-1]) for arm in ("official", "spectrum")] == [3408, 4311]
    assert [round(starts[arm][1][3]) for arm in ("official-t2", "scaling")] == [8065, 542]


def test_answers_behind_the_declared_distances_are_those_of_the_rows() -> None:
    for distance, number in ((4096, 1216), (32, 143)):
        for row in finished_rows("recall-far"):
            (test,) = [
                one
                for one in row["result"]["recall"]["tests"]
                if (one["test"], one["length"]) == ("persistence", 4096)
            ]
            groups = test["distance"]
            assert groups["queries"][groups["up_to"].index(distance)] == number


def test_in_mamba2_scaling_carries_far_recall_and_near_pairs_pay_for_it() -> None:
    """Everything that was declared is confirmed; the spectrum alone, and far and near, are not
    declared.
    """
    declared = sentences.record("recall-mamba2/report/table.json")["declared"]
    assert {one["verdict"] for one in declared["hypotheses"]} == {"confirmed"}
    assert len(declared["hypotheses"]) == 10
    lead = partial(sentences.recalled_lead, "recall-mamba2", against="own_fast", times="8")
    far = {
        arm: lead(f"{arm}_fast", distance="1024")
        for arm in ("post", "own-scaling", "spectrum", "spectrum-t2")
    }
    assert far["own-scaling"].value > 0.75 * far["post"].value
    assert far["spectrum-t2"].value < 0.3 * far["post"].value
    assert far["spectrum-t2"].low > 0
    assert far["spectrum"].value < 0.5
    for arm in ("post", "own-scaling"):
        assert lead(f"{arm}_fast", distance="64").high < 0
        assert lead(f"{arm}_fast", test="capacity").high < 0
    rows = sentences.record("recall-mamba2/scaling-off.json")["rows"]
    for arm, share in (("post_fast", 1 / 6), ("own-scaling_fast", 2 / 5)):
        taken = [
            100 * (row["far"]["goes_on"] - row["far"]["stops"])
            for row in rows
            if (row["arm"], row["length"]) == (arm, 1024)
        ]
        assert len(taken) == 7
        lead_there = far[arm.removesuffix("_fast")].value
        assert statistics.fmean(taken) / lead_there == pytest.approx(share, abs=0.03)
    baseline = shares_at("recall-mamba2", "own_fast", 8, 1024)
    assert statistics.fmean(baseline.values()) == pytest.approx(1, abs=0.5)


def test_the_two_with_long_half_lives_in_mamba2_begin_alike_at_the_length_of_training() -> None:
    for row in finished_rows("recall-mamba2"):
        if row["arm"] in ("post_fast", "spectrum-t2_fast"):
            for quantiles in row["first"]["half_life_quantiles"]:
                assert quantiles[-1] == pytest.approx(11357, rel=1e-3)
    ends = [sentences.longest("recall-mamba2", arm) for arm in ("spectrum-t2_fast", "post_fast")]
    medians = [
        sentences.median("recall-mamba2", arm, "end") for arm in ("spectrum-t2_fast", "post_fast")
    ]
    assert medians[1] > 3 * medians[0]
    assert ends[0] < 11357 < ends[1]
    assert sentences.record("recall-mamba2/spec.json")["model"]["config"]["num_heads"] == 16


def test_long_half_lives_in_mamba2_lose_far_recall_in_training_and_scaling_is_the_rest() -> None:
    """All that was declared is confirmed; of held arms, which differ by scaling, nothing was."""
    declared = sentences.record("recall-mamba2-held/report/table.json")["declared"]
    assert {one["verdict"] for one in declared["hypotheses"]} == {"confirmed"}
    assert len(declared["hypotheses"]) == 10
    lead = partial(sentences.recalled_lead, "recall-mamba2-held")
    far = partial(lead, times="8", distance="1024")
    assert far("post-held", "t2-held").low > 0
    assert far("post-held", "post").high < 0
    assert lead("t2-ordered", "t2", times="1").low > 0
    assert lead("post-held", "t2-held", times="1").high < 0
    neither = far("t2-ordered", "t2-held")
    assert neither.low < 0 < neither.high
    taken = [
        100 * (row["far"]["goes_on"] - row["far"]["stops"])
        for row in sentences.record("recall-mamba2-held/scaling-off.json")["rows"]
        if (row["arm"], row["length"]) == ("post-held", 1024)
    ]
    assert len(taken) == 7
    assert statistics.fmean(taken) > 0.75 * far("post-held", "t2-held").value
    taken_of_post = [
        100 * (row["far"]["goes_on"] - row["far"]["stops"])
        for row in sentences.record("recall-mamba2-held/scaling-off.json")["rows"]
        if (row["arm"], row["length"]) == ("post", 1024)
    ]
    for arm in ("t2-held", "t2-ordered"):
        assert statistics.fmean(taken_of_post) < 0.5 * far("post", arm).value
    others = set(sentences.record("recall-mamba2/spec.json")["seeds"])
    assert not others & set(sentences.record("recall-mamba2-held/spec.json")["seeds"])


def test_held_half_lives_in_mamba2_are_the_same_with_and_without_scaling() -> None:
    ends = []
    for row in finished_rows("recall-mamba2-held"):
        if row["arm"] in ("t2-held", "post-held"):
            assert row["first"]["half_life_quantiles"] == row["last"]["half_life_quantiles"]
            ends.append(row["last"]["half_life_quantiles"])
        elif row["arm"] != "own":
            for quantiles in row["first"]["half_life_quantiles"]:
                assert quantiles[-1] == pytest.approx(11357, rel=1e-3)
    assert len(ends) == 14
    for end in ends:
        assert np.allclose(end, ends[0], rtol=1e-4)


def test_all_half_lives_of_ordered_mamba2_grow_and_of_free_ones_the_longest_shrink() -> None:
    ends = {"t2": [], "t2-ordered": []}
    for row in finished_rows("recall-mamba2-held"):
        if row["arm"] in ends:
            start, end = (np.log(row[when]["half_life_quantiles"]) for when in ("first", "last"))
            ends[row["arm"]].append((start, end))
    start, end = np.mean(ends["t2-ordered"], axis=0)
    assert (end > start).all()
    assert np.exp(start[:, 0]) == pytest.approx([0.69, 0.69], abs=0.01)
    assert np.exp(end[:, 0]) == pytest.approx([35, 9], abs=0.5)
    start, end = np.mean(ends["t2"], axis=0)
    assert (end[:, -1] < start[:, -1]).all()
    assert end[0, 3] > start[0, 3]
    assert end[1, 3] < start[1, 3]


GROWING = ("scaling", "t2", "post")
"""Starts of post-text-mamba2 whose heads sum what they read without a weight, for long."""


@pytest.mark.parametrize("study", ["post-text-mamba2", "post-text-mamba2/pilot"])
def test_mamba2_loses_by_reading_on_where_the_sums_of_its_heads_grow(study: str) -> None:
    for row in finished_rows(study):
        lost = row["result"]["beyond"]["reading_on"]["bpb"][-1]
        start, _ = row["arm"].rsplit("_", 1)
        assert lost > 0.7 if start in GROWING else lost < 0.05


def test_heads_of_mamba2_grow_where_reading_on_loses_and_levelling_gives_a_part_back() -> None:
    growth = long_windows.growth("post-text-mamba2")
    levelled = long_windows.levelled("post-text-mamba2")
    assert len(growth) == 12
    for arm, by_length in growth.items():
        assert [*by_length] == [1, 2, 4, 8, 16]
        assert set(by_length[1].values()) == {1.0}
        farthest = by_length[16]
        assert len(farthest) == 6
        start, _ = arm.rsplit("_", 1)
        changes = levelled[arm]
        assert all(abs(change) < 1e-6 for change in changes[1].values())
        if start not in GROWING:
            assert all(0.9 < times < 1.2 for times in farthest.values())
            assert all(abs(change) < 0.05 for change in changes[16].values())
            continue
        assert all(times > 1.4 for times in farthest.values())
        behind = long_windows.lead("post-text-mamba2", arm, 16).mean
        assert 0.25 < -statistics.fmean(changes[16].values()) / behind < 0.75


def test_inputs_that_are_scaled_down_take_far_recall_and_losses_by_reading_on_away() -> None:
    """Starts that recall far pairs no more often than the own initialisation lose little by reading
    on, the others more, and the more the more they recall among those with the order of PoST.
    """
    declared = sentences.record("recall-mamba2-weighted/report/table.json")["declared"]
    assert len(declared["hypotheses"]) == 9
    assert {one["verdict"] for one in declared["hypotheses"]} == {"confirmed"}
    found = {one.name: (one.far().value, one.lost().mean) for one in trade.STARTS}
    assert len(found) == 7
    with_far_recall = [one for one in found.values() if one[0] > 5]
    without = [one for one in found.values() if one[0] < 4]
    assert len(with_far_recall) == 4
    assert len(without) == 3
    assert all(lost > 0.2 for _, lost in with_far_recall)
    assert all(lost < 0.05 for _, lost in without)
    in_turn = ["PoST, inputs scaled", "PoST, inputs scaled by the root", "PoST"]
    fars, losses = zip(*(found[name] for name in in_turn), strict=True)
    assert sorted(fars) == [*fars]
    assert sorted(losses) == [*losses]


def test_one_seed_on_weighted_inputs_had_learnt_less_within_the_length_of_training() -> None:
    tests = recall_tests.tests_of("recall-mamba2-weighted", "persistence")
    shares = {arm: recall_tests.right_answers(by_length[1]) for arm, by_length in tests.items()}
    behind = {arm: round(by_seed[19]) for arm, by_seed in shares.items()}
    assert behind == {"own": 83, "t2-weighted": 31, "post": 75, "post-root": 50, "post-steps": 55}
    for by_seed in shares.values():
        assert min(share for seed, share in by_seed.items() if seed != 19) > 75


def test_seeds_of_studies_on_weighted_inputs_are_their_own() -> None:
    for study, others in (
        ("recall-mamba2-weighted", ("recall-mamba2", "recall-mamba2-held")),
        ("post-text-weighted", ("post-text-mamba2",)),
    ):
        seeds = set(load_spec(ROOT / "runs" / f"{study}.toml").seeds)
        pilot = set(sentences.record(f"{study}/pilot/spec.json")["seeds"])
        assert not seeds & pilot
        for other in others:
            assert not seeds & set(sentences.record(f"{other}/spec.json")["seeds"])


def test_inputs_scaled_by_the_root_lose_by_reading_on_in_every_seed() -> None:
    for study, seeds in (("post-text-weighted", 6), ("post-text-weighted/pilot", 3)):
        lost = long_windows.losses(study, "reading_on")
        assert {len(lengths[16]) for lengths in lost.values()} == {seeds}
        for seed, own in lost["own"][16].items():
            assert own < lost["post-steps"][16][seed] < own + 0.03
            assert own + 0.1 < lost["post-root"][16][seed]


def test_post_loses_more_than_one_and_a_half_bits_by_reading_on_in_the_mean() -> None:
    pilot = long_windows.losses("post-text-weighted/pilot", "reading_on")
    before = long_windows.losses("post-text-mamba2", "reading_on")["post_fast"][16]
    assert statistics.fmean(pilot["post"][16].values()) > 1.5
    assert statistics.fmean(before.values()) > 1.5
    for seed, lost in pilot["post"][16].items():
        assert lost > pilot["post-root"][16][seed] + 1
    by_root = long_windows.losses("post-text-weighted", "reading_on")["post-root"][16]
    assert 0.17 < statistics.fmean(by_root.values()) < 0.23


def test_leads_at_a_rate_that_is_too_low_are_larger_than_at_the_best_rates() -> None:
    declared = sentences.record("rates/report/table.json")["declared"]["hypotheses"]
    assert {row["verdict"] for row in declared} == {"confirmed"}
    leads = {row["arm"]: -row["mean"] for row in declared}
    assert set(leads) == {"concentrated", "concentrated-matched", "short-matched"}
    for arm, lead in leads.items():
        at_lowest = -paired("rates", f"{arm}_0.004").mean
        assert at_lowest > 1.5 * lead > 0


def test_corrected_for_three_curves_the_lead_of_short_half_lives_alone_is_told_from_none() -> None:
    curves = sentences.record("rates/report/table.json")["curves"]
    told = {one["curve"]: one["p_corrected"] < 0.05 for one in curves if one["against"]}
    assert told == {"concentrated": False, "concentrated-matched": False, "short-matched": True}
    (counts,) = sentences.record("rates/references.json")["references"]
    of_five_bytes = counts["val_bpb"][4]
    losses = [row["result"]["final_val_bpb"] for row in finished_rows("rates")]
    assert len(losses) == 160
    assert min(losses) > of_five_bytes


PARTS = ("placement", "weights", "both")
"""The published start in parts, of rates-parts."""
LATER = {"concentrated", "short-matched"}
"""Curves of rates-longer that are held against that of log-spaced half-lives."""


def test_after_four_times_the_text_both_lead_by_less() -> None:
    report = sentences.record("rates-longer/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == ["confirmed"] * 4
    curves = {one["curve"]: one for one in report["curves"] if one["against"]}
    assert set(curves) == LATER
    assert all(one["p_corrected"] < 0.05 for one in curves.values())
    for name in LATER:
        assert sentences.minimum_p("rates-longer", name, "test") < 0.05
        (margin,) = [row["margin"] for row in declared if row["arm"] == name and row["margin"]]
        assert margin == pytest.approx(sentences.minimum_lead("rates", name, "val"), abs=5e-4)
        lead, on_test = (
            sentences.minimum_lead("rates-longer", name, text) for text in ("val", "test")
        )
        assert -paired("rates-longer", f"{name}_0.004").mean > 3 * lead > 0
        at_lowest = -paired("rates-longer", f"{name}_0.004", at="test_bpb").mean
        assert 1.8 < at_lowest / on_test < 2.3
    found = sentences.minimum_difference("rates-longer", "concentrated", "test")
    assert found.mean - student_t.ppf(0.95, 7) * found.standard_deviation / math.sqrt(8) < -0.020


def test_falls_of_leads_are_welchs_and_corrected_for_four_none_is_told_from_none() -> None:
    alone, p = set(), {}
    for name in LATER:
        for text in ("val", "test"):
            first, later = (
                -np.array(list(sentences.minimum_difference(one, name, text).per_seed.values()))
                for one in ("rates", "rates-longer")
            )
            errors = np.array([first.var(ddof=1), later.var(ddof=1)]) / 8
            degrees = errors.sum() ** 2 / (errors**2 / 7).sum()
            fall = first.mean() - later.mean()
            error = math.sqrt(errors.sum())
            half = student_t.ppf(0.975, degrees) * error
            found = sentences.minimum_fall("rates", "rates-longer", name, text)
            assert found == pytest.approx((fall, fall - half, fall + half))
            p[name, text] = 2 * student_t.sf(abs(fall) / error, degrees)
            if found.low > 0:
                alone.add((name, text))
    assert alone == {("short-matched", "val")}
    assert 4 * min(p.values()) > 0.05


def test_leads_at_best_rates_that_are_larger_on_test_text_are_counted() -> None:
    leads = {}
    for study in minima.CURVES:
        spec = sentences.record(f"{study}/spec.json")
        names = {arm.rpartition("_")[0] for arm in spec["arms"]}
        for name in names & {"short-matched", "8", "concentrated"}:
            leads[study, name] = [
                sentences.minimum_lead(study, name, text) for text in ("val", "test")
            ]
        if "short-matched-200" in names:
            leads[study, "200"] = [
                -sentences.minimum_difference(
                    study, "short-matched-200", text, "log-spaced-200"
                ).mean
                for text in ("val", "test")
            ]
    behind = [key for key, (on_validation, _) in leads.items() if on_validation <= 0]
    assert behind == [("rates-wide-longer", "short-matched")]
    leads.pop(behind[0])
    larger = sum(on_test > on_validation for on_validation, on_test in leads.values())
    assert minima.leads_at_best("all") == len(leads)
    assert minima.leads_at_best("larger") == larger


def test_counts_that_the_runs_on_four_times_the_text_lose_to() -> None:
    (counts,) = sentences.record("rates-longer/references.json")["references"]
    rows = finished_rows("rates-longer")
    assert len(rows) == 96
    assert min(row["result"]["final_val_bpb"] for row in rows) > counts["val_bpb"][3]
    assert min(row["result"]["test_bpb"] for row in rows) > counts["test_bpb"][4]
    for start in ("log-spaced", *LATER):
        at_16 = [row["result"]["test_bpb"] for row in rows if row["arm"] == f"{start}_0.016"]
        assert statistics.fmean(at_16) < counts["test_bpb"][3]


def test_minima_on_test_text_are_held_against_the_curve_that_is_declared() -> None:
    study = sentences.studies()["rates-parts"]
    minima = {
        one.curve.name: rate_curve(study, one.curve.name, "test_bpb_minimum").minima
        for one in curve_results(study)
    }
    items = itertools.chain.from_iterable(sections(compare(study), {}).values())
    tables = [item for item in items if isinstance(item, Table)]
    (table,) = [one for one in tables if one.header[0] == "hypothesis"]
    told = [cells for rows in table.groups.values() for cells in rows]
    column = table.header.index("on test text")
    declared = sentences.record("rates-parts/report/table.json")["declared"]["hypotheses"]
    for row, cells in zip(declared, told, strict=True):
        own, other = minima[row["arm"]], minima[row["against"]]
        mean = statistics.fmean(own[seed] - other[seed] for seed in own)
        on_test = render.on_test_text("rates-parts", row)
        assert on_test is not None
        assert on_test["mean"] == pytest.approx(mean)
        assert cells[column].startswith(f"{mean:+.4f} (")


def test_the_placement_leads_and_the_weights_do_not() -> None:
    report = sentences.record("rates-parts/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == ["confirmed"] * 4
    for text in ("val", "test"):
        p = {name: sentences.minimum_p("rates-parts", name, text) for name in PARTS}
        assert p["placement"] < 0.05
        assert p["both"] < 0.05
        assert p["weights"] > 0.4
        weights = sentences.minimum_change("rates-parts", "weights", text)
        assert weights.low < 0 < weights.value
    for name in ("placement", "both"):
        on_validation = sentences.minimum_lead("rates-parts", name, "val")
        assert sentences.minimum_lead("rates-parts", name, "test") < on_validation
    rows = finished_rows("rates-parts")
    assert len(rows) == 144
    by_minimum = sentences.minimum_difference("rates-parts", "placement", "val").per_seed
    assert set(by_minimum) == {row["seed"] for row in rows}


def test_half_lives_up_to_32_bytes_lead_and_none_of_them_is_told_from_8() -> None:
    study = "rates-lengths"
    assert verdicts(study) == ["confirmed", "confirmed", "undecided", "confirmed", "confirmed"]
    for arm in ("2", "4", "8", "32"):
        assert sentences.minimum_p(study, arm, "val") < 0.05
        assert sentences.minimum_change(study, arm, "test").high < 0
    for text in ("val", "test"):
        longer = sentences.minimum_change(study, "128", text)
        assert longer.low < 0 < longer.high
        eight = sentences.minimum_difference(study, "8", text).per_seed
        for arm in ("2", "4", "32"):
            other = sentences.minimum_difference(study, arm, text).per_seed
            found = paired_difference(other, eight)
            assert found.low < 0 < found.high
    for start in (2, 32):
        ends = [sentences.longest(study, f"{start}_0.016", block) for block in ("1", "2")]
        assert start < min(ends) <= max(ends) < 128
    assert len(finished_rows(study)) == 192


def test_with_256_channels_both_starts_lead_and_short_ones_by_more() -> None:
    report = sentences.record("rates-wide/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == [
        "confirmed",
        "confirmed",
        "undecided",
        "confirmed",
    ]
    rows = finished_rows("rates-wide")
    assert len(rows) == 72
    for name in LATER:
        for text in ("val", "test"):
            assert sentences.minimum_p("rates-wide", name, text) < 0.05
            larger = sentences.minimum_fall("rates-wide", "rates", name, text)
            assert larger.low < 0 < larger.value
    (counts,) = sentences.record("rates-wide/references.json")["references"]
    for start in ("log-spaced", *LATER):
        losses = final_losses(rows, f"{start}_0.004")
        assert len(losses) == 8
        assert max(losses) < counts["val_bpb"][2]
    assert min(row["result"]["final_val_bpb"] for row in rows) > counts["val_bpb"][3]


def test_under_the_gain_of_an_lru_short_half_lives_lead_by_more_than_under_ema() -> None:
    report = sentences.record("rates-lru/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == ["confirmed"] * 4
    rows = finished_rows("rates-lru")
    assert len(rows) == 144
    means: dict[str, list[float]] = {}
    for start in ("log-spaced", "weights", "short-matched", "concentrated"):
        for rate in ("0.004", "0.008", "0.016"):
            losses = final_losses(rows, f"{start}_{rate}")
            assert len(losses) == 12
            means.setdefault(start, []).append(statistics.fmean(losses))
    best = {start: losses.index(min(losses)) for start, losses in means.items()}
    assert best == {"log-spaced": 1, "weights": 1, "short-matched": 2, "concentrated": 1}
    assert means["log-spaced"][2] > means["log-spaced"][1]
    for text in ("val", "test"):
        assert sentences.minimum_fall("rates-lru", "rates", "short-matched", text).low > 0
    (counts,) = sentences.record("rates-lru/references.json")["references"]
    losses = [row["result"]["final_val_bpb"] for row in rows]
    assert max(losses) < counts["val_bpb"][1]
    assert min(losses) > counts["val_bpb"][3]


def test_under_the_gain_of_an_lru_no_lead_is_established_after_four_times_the_text() -> None:
    report = sentences.record("rates-lru-longer/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == ["undecided"] * 3
    rows = finished_rows("rates-lru-longer")
    assert len(rows) == 72
    for text, largest in (("val", 0.0816 / 2), ("test", 0.0843 / 2)):
        for start in LATER:
            change = sentences.minimum_change("rates-lru-longer", start, text)
            assert -largest < change.low < 0 < change.high
            assert sentences.minimum_p("rates-lru-longer", start, text) > 0.05
    for start in LATER:
        low = sentences.lead_interval("rates-lru-longer", f"{start}_0.004", "log-spaced_0.004")
        assert low.low > 0
        high = sentences.lead_interval("rates-lru-longer", f"{start}_0.016", "log-spaced_0.016")
        assert high.low < 0 < high.high
    (counts,) = sentences.record("rates-lru-longer/references.json")["references"]
    assert min(row["result"]["final_val_bpb"] for row in rows) > counts["val_bpb"][3]
    assert min(row["result"]["test_bpb"] for row in rows) > counts["test_bpb"][4]
    for start in ("log-spaced", *LATER):
        for rate in ("0.008", "0.016"):
            losses = [row["result"]["test_bpb"] for row in rows if row["arm"] == f"{start}_{rate}"]
            assert statistics.fmean(losses) < counts["test_bpb"][3]


def test_in_the_pilot_under_an_lru_every_start_is_worse_at_the_highest_rate() -> None:
    rows = finished_rows("rates-lru-longer/pilot")
    for start in ("log-spaced", *LATER):
        at_16, at_32 = (final_losses(rows, f"{start}_{rate}") for rate in ("0.016", "0.032"))
        assert len(at_16) == 3
        assert max(at_16) < min(at_32)


def test_a_longer_warm_up_is_worth_as_much_as_short_half_lives() -> None:
    report = sentences.record("rates-warmup/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == ["confirmed"] * 3
    rows = finished_rows("rates-warmup")
    assert len(rows) == 96
    rates = ("0.004", "0.008", "0.016", "0.032")
    best = {}
    for start in ("log-spaced", "log-spaced-200", "short-matched", "short-matched-200"):
        means = [statistics.fmean(final_losses(rows, f"{start}_{rate}")) for rate in rates]
        best[start] = rates[means.index(min(means))]
    assert best["log-spaced"] == "0.008"
    assert best["log-spaced-200"] == "0.016"
    for rate in rates:
        assert (
            sentences.lead("rates-warmup", f"short-matched-200_{rate}", f"log-spaced-200_{rate}")
            > 0
        )
    for text in ("val", "test"):
        by_warmup = sentences.minimum_lead("rates-warmup", "log-spaced-200", text)
        by_start = sentences.minimum_lead("rates-warmup", "short-matched", text)
        assert abs(by_warmup - by_start) < 0.003
        gains = [
            sentences.minimum("rates-warmup", start, text)
            - sentences.minimum("rates-warmup", f"{start}-200", text)
            for start in ("short-matched", "log-spaced")
        ]
        assert 0 < gains[0] < gains[1]


def test_short_half_lives_lead_after_a_longer_warm_up_under_ema_too() -> None:
    study = "rates-warmup-ema"
    declared = sentences.record(f"{study}/report/table.json")["declared"]["hypotheses"]
    assert [row["verdict"].partition(":")[0] for row in declared] == ["confirmed", "undecided"]
    assert len(finished_rows(study)) == 192
    for rate in ("0.008", "0.016", "0.032", "0.064"):
        lead = sentences.lead(study, f"short-matched-200_{rate}", f"log-spaced-200_{rate}")
        assert lead > 0
    for text in ("val", "test"):
        assert sentences.minimum_change(study, "short-matched", text).high < 0
        for start in ("log-spaced", "short-matched"):
            assert sentences.minimum_rise(study, f"{start}-200", start, text).low > 0
    pilot = sentences.minimum_change(f"{study}/pilot", "log-spaced-200", "val")
    assert pilot.low < 0 < pilot.high


def test_without_a_gain_both_starts_end_lower_after_a_longer_warm_up() -> None:
    study = "rates-warmup-bare"
    assert verdicts(study) == ["confirmed"] * 3
    assert len(finished_rows(study)) == 144
    curves = sentences.record(f"{study}/report/table.json")["curves"]
    best = {row["curve"]: row["best_rate"] for row in curves}
    for start in ("log-spaced", "short-matched"):
        assert sentences.minimum_rise(study, start, f"{start}-200", "val").low > 0
        assert 1.6 < best[f"{start}-200"] / best[start] < 2.2
    lowest = sentences.minimum(study, "short-matched-200", "val")
    assert lowest == pytest.approx(minima.least_end_at_best("short"))


def test_a_longer_warm_up_leaves_the_lead_with_256_channels() -> None:
    study = "rates-warmup-wide"
    assert verdicts(study) == ["confirmed"]
    assert len(finished_rows(study)) == 48
    for text in ("val", "test"):
        fall = sentences.minimum_fall("rates-wide", study, "short-matched", text)
        assert fall.low < 0 < fall.value < fall.high
    leads = [
        sentences.lead(study, f"short-matched_{rate}", f"log-spaced_{rate}")
        for rate in ("0.002", "0.004", "0.008")
    ]
    assert leads[0] > leads[1] > leads[2] > 0
    pilot = sentences.minimum_change(f"{study}/pilot", "short-matched", "val")
    assert pilot.high < 0


def test_with_256_channels_short_half_lives_end_as_log_spaced_ones_after_four_times_the_text() -> (
    None
):
    study = "rates-wide-longer"
    assert verdicts(study) == ["undecided", "confirmed"]
    rows = finished_rows(study)
    assert len(rows) == 48
    for text in ("val", "test"):
        change = sentences.minimum_change(study, "short-matched", text)
        assert -0.01 < change.low < 0 < change.high < 0.01
        assert sentences.minimum_fall("rates-wide", study, "short-matched", text).low > 0
    means = mean_losses(rows)
    assert means["short-matched_0.001"] < means["log-spaced_0.001"]
    assert means["short-matched_0.004"] > means["log-spaced_0.004"]
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    assert max(row["result"]["final_val_bpb"] for row in rows) < counts["val_bpb"][4]
    pilot = sentences.minimum_change(f"{study}/pilot", "short-matched", "val")
    assert pilot.low < 0 < pilot.high


def test_without_a_gain_short_half_lives_lead_after_four_times_the_text() -> None:
    study = "rates-bare-longer"
    assert verdicts(study) == ["confirmed"] * 4
    rows = finished_rows(study)
    assert len(rows) == 96
    narrow = [one for one in minima.comparisons() if one.megabytes > 2 and one.channels == 64]
    ends = [one.baseline + one.val.mean for one in narrow]
    assert min(ends) == pytest.approx(sentences.minimum(study, "short-matched", "val"))
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    for text, key in (("val", "final_val_bpb"), ("test", "test_bpb")):
        of_four, of_five = counts[f"{text}_bpb"][3:5]
        assert min(row["result"][key] for row in rows) > of_five
        log_spaced = [row["result"][key] for row in rows if row["arm"].startswith("log-spaced")]
        assert min(log_spaced) > of_four
        for rate in ("0.004", "0.008", "0.016"):
            losses = [row["result"][key] for row in rows if row["arm"] == f"short-matched_{rate}"]
            assert (statistics.fmean(losses) < of_four) == (text == "test")


def begun(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """The shortest and the longest half-life with which the runs of an arm began."""
    ends: dict[str, tuple[float, float]] = {}
    for row in rows:
        arm = row["arm"].partition("_")[0]
        of_blocks = row["first"]["half_life_quantiles"]
        shortest = min(block[0] for block in of_blocks)
        longest = max(block[-1] for block in of_blocks)
        low, high = ends.get(arm, (shortest, longest))
        ends[arm] = (min(low, shortest), max(high, longest))
    return {arm: (round(low, 1), round(high)) for arm, (low, high) in ends.items()}


def test_short_half_lives_lead_the_official_ones_in_a_small_rwkv_6() -> None:
    study = "rates-finch"
    assert verdicts(study) == ["confirmed"] * 3
    rows = finished_rows(study)
    assert len(rows) == 120
    ahead = sentences.minimum_difference(study, "short", "val", "official").per_seed
    assert max(ahead.values()) < 0
    means = mean_losses(rows)
    for rate in ("0.002", "0.004", "0.008", "0.016"):
        assert means[f"short_{rate}"] < means[f"official_{rate}"] < means[f"log-spaced_{rate}"]
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    of_four, of_five = counts["val_bpb"][3:5]
    log_spaced = [row for row in rows if row["arm"].startswith("log-spaced")]
    assert min(row["result"]["final_val_bpb"] for row in log_spaced) > of_four
    below_four = {arm for arm, mean in means.items() if mean < of_four}
    assert below_four == {
        "official_0.004",
        "official_0.008",
        "short_0.004",
        "short_0.008",
        "short_0.016",
    }
    assert {arm for arm, mean in means.items() if mean < of_five} == {"short_0.008"}
    assert begun(rows) == {"log-spaced": (1, 2000), "short": (1, 8), "official": (1.9, 280)}


def test_short_half_lives_lead_the_official_ones_in_a_small_rwkv_7() -> None:
    study = "rates-goose"
    assert verdicts(study) == ["confirmed"] * 3
    rows = finished_rows(study)
    assert len(rows) == 96
    means = mean_losses(rows)
    leads = {}
    for rate in ("0.002", "0.004", "0.008", "0.016"):
        assert means[f"short_{rate}"] < means[f"official_{rate}"] < means[f"log-spaced_{rate}"]
        leads[rate] = means[f"log-spaced_{rate}"] - means[f"short_{rate}"]
    assert max(leads, key=leads.__getitem__) == "0.016"
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    of_four, of_five = counts["val_bpb"][3:5]
    assert {arm for arm, mean in means.items() if mean < of_four} == {"short_0.004", "short_0.008"}
    assert min(means.values()) > of_five
    assert begun(rows) == {"log-spaced": (1.2, 2000), "short": (1.2, 8), "official": (1.2, 3408)}


def test_short_half_lives_no_longer_lead_in_a_small_rwkv_7_after_four_times_the_text() -> None:
    study = "rates-goose-longer"
    assert verdicts(study) == ["undecided", "confirmed"]
    rows = finished_rows(study)
    assert len(rows) == 48
    rates = ("0.004", "0.008", "0.016")
    means = mean_losses(rows)
    ahead = [rate for rate in rates if means[f"short_{rate}"] < means[f"official_{rate}"]]
    assert ahead == ["0.016"]
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    assert max(means.values()) < counts["val_bpb"][4]
    means_before = mean_losses(finished_rows("rates-goose"))
    for arm in ("official", "short"):
        fast, good = f"{arm}_0.016", f"{arm}_0.008"
        assert means[fast] - means[good] < means_before[fast] - means_before[good]
    assert begun(rows) == {"short": (1.2, 8), "official": (1.2, 3408)}
    in_pilot = sentences.minimum_difference(f"{study}/pilot", "short", "val").per_seed
    assert sum(difference < 0 for difference in in_pilot.values()) == 2


def test_short_half_lives_still_lead_in_a_small_rwkv_6_after_four_times_the_text() -> None:
    study = "rates-finch-longer"
    assert verdicts(study) == ["confirmed", "confirmed"]
    rows = finished_rows(study)
    assert len(rows) == 64
    means = mean_losses(rows)
    for rate in ("0.002", "0.004", "0.008", "0.016"):
        assert means[f"short_{rate}"] < means[f"official_{rate}"]
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    assert max(means.values()) < counts["val_bpb"][4]
    assert begun(rows) == {"short": (1, 8), "official": (1.9, 280)}
    in_pilot = sentences.minimum_difference(f"{study}/pilot", "short", "val").per_seed
    assert sum(difference < 0 for difference in in_pilot.values()) == 2


def test_short_half_lives_lead_the_own_ones_in_a_small_mamba_2() -> None:
    study = "rates-mamba2"
    assert verdicts(study) == ["confirmed"] * 3
    rows = finished_rows(study)
    assert len(rows) == 96
    means = mean_losses(rows)
    leads = {}
    for rate in ("0.004", "0.008", "0.016", "0.032"):
        leads[rate] = means[f"own_{rate}"] - means[f"short_{rate}"]
    assert min(leads.values()) > 0
    assert max(leads, key=leads.__getitem__) == "0.032"
    (counts,) = sentences.record(f"{study}/references.json")["references"]
    assert min(means.values()) > counts["val_bpb"][3]
    ends = begun(rows)
    assert ends["log-spaced"] == (1, 2000)
    assert ends["short"] == (1, 8)
    in_pilot = sentences.minimum_difference(f"{study}/pilot", "short", "val")
    assert in_pilot.mean < 0
    curves = sentences.record(f"{study}/report/table.json")["curves"]
    (log_spaced,) = [one["per_seed"] for one in curves if one["curve"] == "log-spaced"]
    at_first, at_last = (
        {str(row["seed"]): row["result"]["final_val_bpb"] for row in rows if row["arm"] == arm}
        for arm in ("log-spaced_0.004", "log-spaced_0.016")
    )
    at_an_end = [
        seed
        for seed, minimum in log_spaced.items()
        if minimum in (pytest.approx(at_first[seed]), pytest.approx(at_last[seed]))
    ]
    assert len(at_an_end) == 2


def test_minima_of_every_study_of_curves_are_those_of_its_report() -> None:
    """The table in docs/evidence/rates.md against the reports, whose differences are by t too."""
    short = [one for one in minima.comparisons() if one.start == "short"]
    assert {one.study for one in short} == {*minima.CURVES} - {"rates-parts"}
    for one in minima.comparisons():
        curves = sentences.record(f"{one.study}/report/table.json")["curves"]
        means = [row["difference"]["mean"] for row in curves if row["difference"]]
        assert min(abs(one.val.mean - mean) for mean in means) < 1e-9
        spec = sentences.record(f"{one.study}/spec.json")
        assert one.steps == spec["train"]["steps"]
        assert one.channels == spec["model"].get("dim")
        if one.megabytes < 2:
            assert one.steps == 600
            assert one.val.high < 0
            assert one.test.high < 0
    longer = {(one.gain, one.channels): one.val.high for one in short if one.megabytes > 2}
    assert longer["none", 64] < longer["EMA", 64] < 0 < longer["LRU", 64]
    assert longer["EMA", 256] > 0
    concentrated = {one.study: one for one in minima.comparisons() if one.start == "concentrated"}
    by_less = [
        one.study
        for one in short
        if one.study in concentrated and concentrated[one.study].val.mean > one.val.mean
    ]
    assert {*concentrated} - {*by_less} == {"rates-lru-longer"}


def test_short_half_lives_differ_less_over_settings_than_log_spaced_ones() -> None:
    """Settings of 64 channels and 1.2 MB."""
    narrow = [one for one in minima.comparisons() if (one.channels, one.steps) == (64, 600)]
    assert {one.gain for one in narrow} == {"EMA", "LRU", "none"}
    apart = {
        start: minima.largest_end_at_best(start) - minima.least_end_at_best(start)
        for start in ("short", "log-spaced")
    }
    assert apart["short"] < 0.1
    assert apart["log-spaced"] > 0.3


def test_curves_after_little_text_are_of_the_short_warm_up() -> None:
    for study in ("rates", "rates-parts", "rates-wide", "rates-lru", "rates-bare"):
        spec = sentences.record(f"{study}/spec.json")
        assert (spec["train"]["steps"], spec["train"]["warmup"]) == (600, 50)


def test_without_a_gain_short_half_lives_lead_and_output_scale_is_not_why() -> None:
    report = sentences.record("rates-bare/report/table.json")
    declared = report["declared"]["hypotheses"]
    assert [row["verdict"] for row in declared] == [
        "confirmed",
        "confirmed",
        "confirmed",
        "confirmed",
        "confirmed",
    ]
    rows = finished_rows("rates-bare")
    assert len(rows) == 180
    (counts,) = sentences.record("rates-bare/references.json")["references"]
    three_bytes = counts["val_bpb"][2]
    means: dict[str, dict[str, float]] = {"log-spaced": {}, "short-matched": {}}
    for start, at in means.items():
        for rate in ("0.001", "0.002", "0.004", "0.008", "0.016"):
            losses = final_losses(rows, f"{start}_{rate}")
            assert len(losses) == 6
            at[rate] = statistics.fmean(losses)
            if start == "log-spaced":
                assert min(losses) > three_bytes
            elif rate == "0.008":
                assert max(losses) < three_bytes
    best = {start: min(at, key=lambda rate: at[rate]) for start, at in means.items()}
    assert best == {"log-spaced": "0.002", "short-matched": "0.008"}
    assert sentences.minimum_fall("rates-bare", "rates", "short-matched", "val").low > 0
    for text in ("val", "test"):
        assert sentences.minimum_lead("rates-bare", "short", text) > 0.1
    gains = ("rates", "rates-lru", "rates-bare")
    ends = [sentences.minimum(study, "log-spaced", "val") for study in gains]
    assert ends == sorted(ends)
    short = [sentences.minimum(study, "short-matched", "val") for study in gains]
    assert max(short) - min(short) < 0.02 < ends[1] - ends[0]
    frozen = sentences.minimum_change("rates-bare/pilot", "frozen", "val")
    assert frozen.low < 0 < frozen.high < 0.1


def test_levelled_heads_recall_near_pairs_more_often_and_keep_most_far_ones() -> None:
    changes = recall_tests.changes_by_levelling("recall-mamba2-weighted")
    far = sentences.recalled_lead("recall-mamba2-weighted", "post", "own", "8", distance="1024")
    behind = sentences.recalled_lead("recall-mamba2-weighted", "post", "own", "8", "capacity")
    back = changes["post"]["where pairs grow"]
    assert back.low > 0
    assert 0.4 < back.mean / -behind.value < 0.5
    assert changes["post"]["64"].low > 0
    lost = changes["post"]["1,024"]
    assert lost.high < 0
    assert -lost.mean < far.value / 3


def test_scaling_beyond_the_length_of_training_is_a_small_part_of_far_recall() -> None:
    rows = sentences.record("recall-far/scaling-off.json")["rows"]
    for arm, lead in (("scaling", 17), ("post", 15)):
        found = [row for row in rows if (row["arm"], row["length"]) == (arm, 4096)]
        lost = {row["seed"]: 100 * (row["far"]["goes_on"] - row["far"]["stops"]) for row in found}
        assert len(lost) == 6
        assert 2 < statistics.fmean(lost.values()) < 3
        assert 5.5 < max(lost.values()) < 6.5
        own, base = (shares_at("recall-far", one, 8, 4096) for one in (arm, "official"))
        assert statistics.fmean(own[seed] - base[seed] for seed in lost) == pytest.approx(
            lead, abs=0.5
        )


def test_scaling_held_at_the_length_of_training_recalls_as_much() -> None:
    rows = sentences.record("recall-capacity/scaling-off.json")["rows"]
    for arm in {row["arm"] for row in rows}:
        changes = [row["stops"] - row["goes_on"] for row in rows if row["arm"] == arm]
        assert len(changes) >= 5 * 4
        assert abs(statistics.fmean(changes)) < 0.01


def test_queries_of_capacity_are_mostly_near_and_answered_at_every_length() -> None:
    for by_length in recall_tests.tests_of("recall-capacity", "capacity").values():
        for by_seed in by_length.values():
            assert 93 < np.mean([*recall_tests.right_answers(by_seed).values()]) < 98
        (groups,) = {
            tuple(zip(one["distance"]["up_to"], one["distance"]["queries"], strict=True))
            for one in by_length[8].values()
        }
        near = sum(queries for end, queries in groups if end <= 128)
        assert 0.62 < near / sum(queries for _, queries in groups) < 0.7


def test_the_figure_of_recall_shows_every_arm_and_seed() -> None:
    figure = recall_tests.figure("recall-post")
    by_length, by_distance, lead = figure.axes
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["32 pairs", "at 8 times the length", "minus official, 8 times"]
    assert [axes.get_xlabel() for axes in figure.axes] == list(recall_tests.BELOW)
    arms = list(studies()["recall-post"].arms)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == arms
    means = [np.asarray(line.get_ydata()) for line in by_length.lines]
    assert len(means) == len(by_distance.lines) == len(arms)
    shown = sentences.accuracies("recall-post", "persistence")["official"]
    assert means[0] == pytest.approx([100 * np.mean([*one.values()]) for one in shown.values()])
    strokes = [line for line in lead.lines if len(np.asarray(line.get_xdata())) == 16]
    assert len(strokes) == len(arms) - 1
    assert [label.get_text() for label in lead.get_yticklabels()] == arms[1:]
    for place, line in enumerate(strokes):
        assert place < float(np.asarray(line.get_ydata())[0]) < place + 1


def test_the_figure_of_recall_has_a_row_for_every_rate() -> None:
    figure = recall_tests.figure("recall-capacity")
    assert len(figure.axes) == 6
    for place, rate in enumerate(("slow", "fast")):
        by_length, by_distance, lead = figure.axes[3 * place : 3 * place + 3]
        assert by_length.get_title(loc="left") == f"128 pairs, rate {rate}"
        shown = sentences.accuracies("recall-capacity", "persistence")[f"post_{rate}"]
        means = [100 * np.mean([*one.values()]) for one in shown.values()]
        assert np.asarray(by_length.lines[3].get_ydata()) == pytest.approx(means)
        assert len(by_distance.lines) == 4
        assert len([one for one in lead.lines if len(np.asarray(one.get_xdata())) == 8]) == 3


def test_the_figure_of_reach_shows_the_differences_of_every_start() -> None:
    figure = render.reach_figure()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        *(f"{model}, minus up to 256" for model in ("SSM", "RWKV-7", "Mamba-2")),
        *(f"SSM of 256 channels, {rate} rate, minus up to 256" for rate in ("slow", "fast")),
        *(f"{model}, farther copies, minus up to 2,048" for model in ("SSM", "RWKV-7")),
    ]
    farther = figure.axes[5]
    early, end = (lines.lines[0] for lines in farther.containers)
    found = [paired("reach-far", arm, "2048") for arm in ("32", "128", "512")]
    assert np.asarray(end.get_ydata()) == pytest.approx([one.mean for one in found])
    assert half_widths(farther, 1) == pytest.approx([one.mean - one.low for one in found])
    assert all(one.low < 0 < one.high for one in found)
    halfway = paired("reach-far", "32", "2048", "1000")
    assert np.asarray(early.get_ydata())[0] == pytest.approx(halfway.mean)
    assert halfway.low > 0
    _, wide = (lines.lines[0] for lines in figure.axes[3].containers)
    found = [paired("reach-wide", f"{longest}_slow", "256_slow") for longest in (16, 64)]
    assert np.asarray(wide.get_ydata()) == pytest.approx([one.mean for one in found])


def test_far_copies_are_found_by_every_start_of_rwkv7() -> None:
    """As was declared; when they are found differs more between seeds than between starts."""
    assert verdicts("reach-far-goose") == ["confirmed"] * 3
    for arm in ("own", "32", "512"):
        end = paired("reach-far-goose", arm, "2048")
        assert max(abs(end.low), abs(end.high)) < 0.005
        early = paired("reach-far-goose", arm, "2048", "375")
        assert early.low < 0 < early.high
        assert early.standard_deviation > 20 * end.standard_deviation
    assert 32 < sentences.longest("reach-far-goose", "32") < 512


def test_the_figure_of_exponents_shows_the_best_one_and_those_that_one_may_expect() -> None:
    figure = render.best_figure()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"lags-{lags}, decays {decays}"
        for lags in ("0.7", "1.0", "1.4")
        for decays in ("learnt", "frozen")
    ]
    frozen = figure.axes[1]
    vertical = [line for line in frozen.lines if len({*np.asarray(line.get_xdata())}) == 1]
    best = render.best_exponent("lags-0.7", "frozen", "final_val_bpb").at
    places = [float(np.asarray(line.get_xdata())[0]) for line in vertical]
    assert places[:2] == pytest.approx([best, 0.7])
    assert len({line.get_linestyle() for line in vertical}) == len(vertical) == 4
    (points,) = [line for line in frozen.lines if line.get_marker() == "o"]
    arms = [f"{one}_lags-0.7_frozen" for one in render.EXPONENTS]
    means = [paired("memory-dose", arm, "uniform_lags-0.7_frozen").mean for arm in arms]
    assert np.asarray(points.get_ydata()) == pytest.approx(means)


RATES = ("slow", "fast")


def test_a_short_start_costs_more_in_a_wider_model() -> None:
    declared = sentences.record("reach-wide/report/table.json")["declared"]["hypotheses"]
    assert [round(one["mean"], 3) for one in declared] == [0.014, 0.006, 0.006]
    assert [one["verdict"] for one in declared] == ["confirmed", "confirmed", "undecided"]
    on_test = paired("reach-wide", "64", "256", "test_bpb").per_seed.values()
    assert [one < 0 for one in on_test] == [False, True, False, False, False]
    for longest in (16, 64, 256):
        slow, fast = (
            statistics.fmean(sentences.losses("reach-wide", f"{longest}_{rate}").values())
            for rate in RATES
        )
        assert slow < fast
    rows = [row for row in finished_rows("reach-wide") if row["seed"] == 0]
    assert {row["result"]["bytes"] for row in rows} == {600 * 8 * 512}


def test_many_distances_have_every_other_label() -> None:
    lowest = recall_tests.figure("recall-capacity").axes[-2]
    named = [label.get_text() for label in lowest.get_xticklabels()]
    assert named == ["", "64", "", "256", "", "1,024", "", "4,096"]


def half_widths(axes: Any, index: int) -> list[float]:
    """Half the lengths of the bars of the curve that was drawn as number `index`."""
    (bars,) = axes.containers[index].lines[2]
    return [float(high - low) / 2 for (_, low), (_, high) in bars.get_segments()]


@pytest.mark.parametrize(
    ("study", "starts"),
    [
        ("post-text", ["official", "official-t2", "scaling", "post"]),
        ("post-text-mamba2", ["own", "scaling", "spectrum", "t2", "t2-weighted", "post"]),
    ],
)
def test_the_figure_of_long_windows_shows_every_arm_and_its_models_that_stop(
    study: str, starts: list[str]
) -> None:
    figure = long_windows.figure(study)
    stopped = [f"{one}, stopped at T" for one in ("scaling", "post")]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == starts + stopped
    for place, rate in enumerate(("slow", "fast")):
        above, below = figure.axes[place], figure.axes[place + 2]
        assert above.get_title(loc="left") == f"rate {rate}"
        assert len(above.containers) == len(starts + stopped) - 1
        assert len(below.containers) == len(starts + stopped)
        rows = [row for row in finished_rows(study) if row["arm"] == f"post_{rate}"]
        bits = [row["result"]["beyond"]["reading_on"]["bpb"] for row in rows]
        assert len(bits) == 6
        drawn = below.containers[starts.index("post")].lines[0]
        assert np.asarray(drawn.get_ydata()) == pytest.approx(np.mean(bits, axis=0))
        half = student_t.ppf(0.975, 5) * np.std(bits, axis=0, ddof=1) / sqrt(6)
        assert half_widths(below, starts.index("post")) == pytest.approx(half)
        lead = sentences.behind_at(study, f"post_{rate}", "16")
        shown = half_widths(above, starts.index("post") - 1)
        assert shown[-1] == pytest.approx(lead.high - lead.value)
        assert [label.get_text() for label in below.get_xticklabels()] == ["1", "2", "4", "8", "16"]


def test_pairs_beyond_those_of_training_are_answered_less_often() -> None:
    for by_length in recall_tests.tests_of("recall-post", "capacity").values():
        shares = recall_tests.by_group(by_length[8], "order")
        means = {end: values.mean() for end, values in shares.items()}
        first = [means[end] for end in (16, 32)]
        assert all(mean < min(first) for end, mean in means.items() if end > 48)


def test_the_learning_rate_moves_every_start_on_text_by_more_than_post_does() -> None:
    for start in ("official", "official-t2", "scaling", "post"):
        rates = paired("post-text", f"{start}_fast", f"{start}_slow")
        assert rates.high < -0.03


@pytest.mark.parametrize("study", ["post-text", "post-text-mamba2"])
def test_scaling_that_stops_at_the_length_of_training_changes_nothing_before_it(study: str) -> None:
    rows = finished_rows(study)
    runs = {(row["arm"], row["seed"]): row["result"]["beyond"] for row in rows}
    stopped = record(f"{study}/scaling-off.json")["rows"]
    assert len(stopped) == 24
    for row in stopped:
        goes_on = runs[row["arm"], row["seed"]]["positions"]
        within = goes_on["given"].index(128) + 1
        stops = row["positions"]["bpb"]
        assert stops[:within] == pytest.approx(goes_on["bpb"][:within])
        assert stops[within:] != pytest.approx(goes_on["bpb"][within:])
