"""python -m plkernel.init: which schemes a pattern names, and how their lines are laid out."""

from types import SimpleNamespace
from typing import Any

import pytest

from plkernel.commands.init import matching, print_scheme, table_rows

NAMES = ["megatron_mup", "mup", "mup_table8", "gpt2"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("mup", ["mup"]),
        ("mu", ["megatron_mup", "mup", "mup_table8"]),
        ("MUP_", ["mup_table8"]),
        ("mup*", ["mup", "mup_table8"]),
        ("gpt?", ["gpt2"]),
        ("gpt[13]*", None),
        ("*", sorted(NAMES)),
    ],
)
def test_a_whole_name_matches_alone_and_a_part_all_that_have_it(
    pattern: str, found: list[str] | None
) -> None:
    if found is None:
        with pytest.raises(ValueError, match="scheme must be the name of one"):
            matching(pattern, NAMES)
    else:
        assert matching(pattern, NAMES) == found


@pytest.mark.parametrize(("whole", "constants"), [(True, {}), (False, {"std": 0.02, "gain": 1.0})])
def test_a_scheme_is_told_in_a_column_behind_its_name(
    whole: bool, constants: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    scheme: Any = SimpleNamespace(
        name="mup", about="first\nof all\n\nsecond", options=constants, source="a paper"
    )
    print_scheme(scheme, 8, whole)
    lines = ["mup     first of all"]
    lines += ["        second"] if whole else ["        std=0.02  gain=1"]
    assert capsys.readouterr().out.splitlines() == [*lines, "        a paper"]


def entry(label: str, layer: int | None, **changes: Any) -> Any:
    shape = changes.pop("shape", (2, 3))
    values = {"distribution": "N(0.02)", "learning_rate": 0.5, "weight_decay": 1.0, **changes}
    parameter = SimpleNamespace(label=label, role="value", shape=shape, layer=layer)
    return SimpleNamespace(parameter=parameter, **values)


def test_equal_parameters_of_blocks_share_a_row() -> None:
    """With the first and the last of their blocks; another rate is another row."""
    rows = table_rows(
        [
            entry("embed.weight", None),
            *(entry(f"blocks.{layer}.B.weight", layer) for layer in range(3)),
            entry("blocks.3.B.weight", 3, learning_rate=0.25),
            entry("blocks.4.4.weight", 4, shape=(5,)),
        ]
    )
    cells = ["N(0.02)", "0.5", "1"]
    assert rows == [
        ["embed.weight", "", "value", "2x3", *cells],
        ["blocks.*.B.weight", "0-2", "value", "2x3", *cells],
        ["blocks.*.B.weight", "3", "value", "2x3", "N(0.02)", "0.25", "1"],
        ["blocks.*.4.weight", "4", "value", "5", *cells],
    ]
