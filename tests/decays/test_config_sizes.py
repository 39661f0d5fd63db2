"""Sizes of config.json at the limits up to which a model is built, and one beyond."""

from typing import Any

import pytest

from plkernel.decays.config_sizes import check_against, check_parameters, check_sizes

NAMES = ["layers.0.a", "layers.3.a", "head.weight"]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        *((name, 10_000) for name in ("num_hidden_layers", "n_layer", "num_blocks", "depth")),
        *((name, 2**16) for name in ("num_heads", "num_local_experts", "n_groups", "head_count")),
        *((name, 2**24) for name in ("hidden_size", "d_model", "vocab_size", "d_state", "expand")),
    ],
)
@pytest.mark.parametrize("place", ["", "table", "list", "list of tables"])
def test_sizes_at_their_limits_are_taken_and_one_beyond_is_refused(
    name: str, most: int, place: str
) -> None:
    def config(size: Any) -> dict[str, Any]:
        if place == "table":
            return {"inner": {name: size}}
        if place == "list":
            return {name: [1, size]}
        return {"inner": [{}, {name: size}]} if place else {name: size}

    check_sizes(config(most))
    with pytest.raises(ValueError, match=f"config.json: {name} must be at most {most:,}, got"):
        check_sizes(config(most + 1))


@pytest.mark.parametrize(
    "config",
    [
        {"sliding_window_size": 10**12},
        {"chunk_size": 10**12},
        {"max_batch_size": 10**12},
        {"rope_theta": 10**12},
        {"hidden_size": True},
        {"hidden_size": "10000000000000"},
        {"hidden_size": None},
    ],
)
def test_what_makes_no_tensor_larger_may_be_any_number(config: dict[str, Any]) -> None:
    check_sizes(config)
    check_against(config, NAMES, 10)


@pytest.mark.parametrize("form", [list, lambda length: "M" * length])
def test_lists_with_an_entry_for_each_layer_are_as_long_as_a_model_is_deep(form: Any) -> None:
    def entries(length: int) -> Any:
        return form([0] * length) if form is list else form(length)

    check_sizes({"layer_types": entries(10_000)})
    check_sizes({"other": entries(10_001)})
    with pytest.raises(ValueError, match="layer_types must have at most 10,000 entries, got 10,0"):
        check_sizes({"layer_types": entries(10_001)})


def test_a_huge_number_is_told_in_a_few_digits() -> None:
    for size, told in ((2**63 - 1, "9223372036854775807"), (2.0**70, "1.18e\\+21")):
        with pytest.raises(ValueError, match=f"hidden_size must be at most .*, got {told}$"):
            check_sizes({"hidden_size": size})


def test_layers_are_at_most_those_that_have_tensors() -> None:
    """The largest number in a name is 3, so there may be four."""
    check_against({"num_hidden_layers": 4}, NAMES, 10)
    with pytest.raises(ValueError, match="num_hidden_layers must be at most the 4 layers that"):
        check_against({"num_hidden_layers": 5}, NAMES, 10)
    with pytest.raises(ValueError, match="must be at most the 0 layers that have tensors, got 1"):
        check_against({"num_hidden_layers": 1}, ["head.weight"], 10)
    check_against({"num_hidden_layers": 5, "num_hidden_groups": 1}, NAMES, 10)
    check_against({"num_hidden_layers": 5, "total_ut_steps": 1}, NAMES, 10)


def test_widths_are_at_most_all_numbers_together() -> None:
    check_against({"hidden_size": 10}, NAMES, 10)
    with pytest.raises(ValueError, match="hidden_size must be at most the 10 numbers that all"):
        check_against({"hidden_size": 11}, NAMES, 10)
    check_against({"vision_config": {"hidden_size": 11, "num_layers": 9}}, NAMES, 10)
    with pytest.raises(ValueError, match="hidden_size must be at most 16,777,216"):
        check_against({"vision_config": {"hidden_size": 2**25}}, NAMES, 10)


def test_a_model_has_at_most_twice_as_many_parameters_as_there_are_numbers() -> None:
    check_parameters(20, 10)
    with pytest.raises(
        ValueError, match=r"of the 10 numbers .* together hold, got one of 21 param"
    ):
        check_parameters(21, 10)
