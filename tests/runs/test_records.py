"""README.md and the pages of docs/ say what the committed records say."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from plkernel.common.files import read_lines
from plkernel.results.comparison import compare
from plkernel.results.judging import read_hypotheses
from plkernel.results.study import read_study

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.fixture(scope="module")
def renderer(script_of: Callable[[str], ModuleType]) -> ModuleType:
    return script_of("records/render")


def test_documents_are_rendered_from_the_records(renderer: ModuleType) -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    assert {match[2].split()[0] for text in texts for match in renderer.PART.finditer(text)} == set(
        renderer.PARTS
    )
    assert [renderer.render(text) for text in texts] == texts


def test_a_changed_number_is_noticed(renderer: ModuleType) -> None:
    text = (ROOT / "docs" / "evidence" / "tables.md").read_text()
    assert "-0.0168" in text
    assert renderer.render(text.replace("(-0.0168", "(-0.0169")) == text


def test_what_is_computed_for_test_text_is_what_was_computed_for_validation(
    renderer: ModuleType,
) -> None:
    """The same functions, on validation text, give the numbers that the records keep.

    Bands of several lengths are Bonferroni's at the widest.
    """
    rows = renderer.load("memory-dose/best.json")["rows"]
    for row in rows:
        at = "final_val_bpb" if row["step"] is None else str(row["step"])
        found = renderer.best_exponent(row["corpus"], row["decays"], at)
        expected = [row["best"][name] for name in ("at", "low", "high")]
        assert [one is None for one in found] == [one is None for one in expected]
        known = [one for one in found if one is not None]
        assert known == pytest.approx([one for one in expected if one is not None], rel=1e-9)
    for row in renderer.load("memory-length/length.json")["rows"]:
        last = renderer.at_the_end(row["arm"], row["rate"], "final_val_bpb")
        assert last["mean"] == pytest.approx(row["mean"][-1], rel=1e-9)
        assert last["low"] <= row["low"][-1] + 1e-12
        assert last["high"] >= row["high"][-1] - 1e-12


def commands() -> Iterator[tuple[str, str]]:
    """The path of every committed JSON record and the command that made it."""
    for path in sorted((ROOT / "runs/records").rglob("*.json")):
        content = json.loads(path.read_text())
        environment = content.get("environment", {}) if isinstance(content, dict) else {}
        if "command" in environment:
            yield str(path.relative_to(ROOT / "runs/records")), environment["command"]


def test_every_script_that_a_page_or_a_record_cites_is_there(renderer: ModuleType) -> None:
    pages = [*DOCUMENTS, *sorted(ROOT.glob("runs/records/*/README.md"))]
    texts = [page.read_text() for page in pages]
    texts += [renderer.cited(command, path) for path, command in commands()]
    scripts = {name for text in texts for name in re.findall(r"python3? (runs/\S+?\.py)", text)}
    assert len(scripts) > len(BESIDE)
    assert [name for name in sorted(scripts) if not (ROOT / name).is_file()] == []


BESIDE = {
    "beta-sweep/texts": "texts",
    "decays-train/observe": "observations",
    "findings/findings": "look",
    "measure/interval_coverage": "coverage",
    "measure/mutual_information": "measurements",
    "minimax/minimax_table": "table",
    "mup/mup_transfer": "transfer",
    "saturation/saturation": "saturation",
    "state-precision/study": "state_precision",
}
"""Scripts that made a record, and what each of them runs."""


@pytest.mark.parametrize("script", BESIDE)
def test_scripts_beside_records_load(script: str, script_of: Callable[[str], ModuleType]) -> None:
    assert callable(getattr(script_of(f"records/{script}"), BESIDE[script]))


STATE_RECORDS = ["state-precision", "state-precision-gdn", "state-precision-gdn-own"]


@pytest.mark.parametrize("record", STATE_RECORDS)
def test_hypotheses_on_stored_states_are_those_registered_with_other_seeds_than_the_pilot(
    record: str,
) -> None:
    folder = ROOT / "runs/records" / record
    registered = json.loads((folder / "registered.json").read_text())
    stating = read_hypotheses(folder / "hypotheses.toml")
    assert registered["hypotheses"] == [one.model_dump() for one in stating.hypotheses]
    assert [one["name"] for one in registered["power"]] == [one.name for one in stating.hypotheses]
    pilot = {row["seed"] for row in read_lines(folder / "pilot/losses.jsonl")}
    assert registered["pilot_seeds"] == sorted(pilot)
    assert not set(registered["seeds"]) & pilot


def test_sentences_on_stored_states_hold_in_the_rows() -> None:
    """Half-lives of docs/evidence/state.md, and which model to 16,384 bytes is nearest far out."""
    page = (ROOT / "docs/evidence/state.md").read_text().replace("\n  ", " ")
    assert "the longest end within a factor of two and a half of where they began" in page
    assert "some of their half-lives exceed 10,000 bytes" in page
    assert "Of the models to 16,384 bytes the gated delta net is nearest" in page
    far: dict[str, dict[str, list[float]]] = {}
    for record in ("state-precision", "state-precision-gdn"):
        for row in read_lines(ROOT / "runs/records" / record / "losses.jsonl"):
            model, begun, *_ = row["condition"].split(", ")
            for quantiles in row["half_lives"]:
                assert 1 / 2.5 < quantiles[-1] / float(begun) < 2.5
                assert model not in ("rwkv7", "mamba2") or quantiles[-1] > 10_000
            if begun != "16384":
                continue
            for text, losses in row["losses"].items():
                change = losses["bfloat16"][-1] - losses["float32"][-1]
                by_model = far.setdefault(text, {})
                by_model.setdefault(row["condition"], []).append(change)
    for by_model in far.values():
        size = {name: abs(sum(changes)) / len(changes) for name, changes in by_model.items()}
        assert min(size, key=lambda name: size[name]) == "gdn, 16384"


def test_sentences_on_initialisations_of_gated_delta_nets_hold_in_the_rows() -> None:
    """By how much that of Qwen3-Next loses by seed, and which margins were confirmed."""
    page = (ROOT / "docs/evidence/state.md").read_text().replace("\n  ", " ")
    assert "Four of six seeds lose about a bit, two a quarter or less" in page
    assert "is as good as log-spaced half-lives** within the margin of five hundredths" in page
    assert "Within the same margin are the two initialisations of the bounded gate" in page
    records = ROOT / "runs/records"
    sparse: dict[str, dict[int, list[float]]] = {}
    for record in STATE_RECORDS[1:]:
        for row in read_lines(records / record / "losses.jsonl"):
            of_seed = sparse.setdefault(row["condition"], {})
            of_seed[row["seed"]] = row["losses"]["sparse"]["float32"]
    base = sparse["gdn, 16384"]
    lost = [of[0] - base[seed][0] for seed, of in sparse["gdn, qwen3-next"].items()]
    assert sum(0.85 < one < 1.15 for one in lost) == 4
    assert sum(0 < one < 0.25 for one in lost) == 2
    table = json.loads((records / STATE_RECORDS[2] / "table.json").read_text())
    on_losses = [one for one in table["hypotheses"] if one["size"] == "loss, validation"]
    verdicts = {one["arm"]: (one["margin"], one["verdict"]) for one in on_losses}
    assert verdicts == {
        "gdn, qwen3-next": (0.0, "undecided"),
        "gdn, fla": (0.05, "confirmed"),
        "gdn-bounded, fla": (0.05, "confirmed"),
        "gdn-bounded, 16384": (0.05, "confirmed"),
    }


@pytest.mark.parametrize("record", STATE_RECORDS)
def test_stored_states_are_judged_as_registered_and_the_table_is_that_of_the_rows(
    record: str, script_of: Callable[[str], ModuleType]
) -> None:
    folder = ROOT / "runs/records" / record
    study = script_of("records/state-precision/study")
    registered = json.loads((folder / "registered.json").read_text())
    rows = read_lines(folder / "losses.jsonl")
    runs = {(row["condition"], row["seed"]) for row in rows}
    expected = {
        (one.name, seed) for one in study.CONDITIONS[record] for seed in registered["seeds"]
    }
    assert len(rows) == len(runs)
    assert runs == expected
    found = study.table_of(folder)
    table = json.loads((folder / "table.json").read_text())
    for part in ("rows", "hypotheses", "losses"):
        if part not in found:
            assert part not in table
            continue
        assert len(found[part]) == len(table[part])
        for one, held in zip(found[part], table[part], strict=True):
            assert one.keys() == held.keys()
            for name, value in held.items():
                is_number = isinstance(value, float)
                assert one[name] == (pytest.approx(value, rel=1e-9) if is_number else value)


def test_the_table_of_minimax_is_what_its_script_makes(
    script_of: Callable[[str], ModuleType],
) -> None:
    made = script_of("records/minimax/minimax_table")
    record = json.loads((ROOT / "runs/records/minimax/table.json").read_text())
    rows = {(row["beta"], row["max_lag"], row["terms"]): row for row in record["rows"]}
    assert len(rows) == sum(
        made.most_terms(beta, lag) for beta in made.BETAS for lag in made.MAX_LAGS
    )
    found = made.row(1.15, 512, 6)
    before = rows[1.15, 512, 6]
    assert set(found) == set(before)
    # A level sum is the best to a thousandth: errors of two runs agree as closely.
    for name in ("error", "ratio_to_closed_form"):
        assert found[name] == pytest.approx(before[name], rel=1e-3)


def test_the_demo_decides_and_no_arm_of_it_is_worse_than_counts_of_two_bytes() -> None:
    one = compare(read_study(ROOT / "runs/records/demo"))
    assert one.declared
    assert [outcome.judgement.verdict for outcome in one.declared.outcomes] == [
        "confirmed",
        "confirmed",
        "undecided",
    ]
    assert one.declared.registered
    assert not one.declared.changes
    for corpus, bits in (
        ("copies", 2.4582),
        ("source", 3.466),
    ):  # counts of two bytes in references.json
        assert f"{bits}" in (ROOT / "runs/records/demo/references.json").read_text()
        ends = [
            run.result.final_val_bpb
            for arm in one.arms
            if corpus in arm.name
            for run in one.study.finished(arm.name)
        ]
        assert len(ends) == 9
        assert max(ends) < bits
