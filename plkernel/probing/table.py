"""The functional probe as text: one row for every lag, or number of tokens given, with the text's own information."""

from collections.abc import Iterable

from plkernel.analysis.intervals import critical_value
from plkernel.analysis.trained.influence import Probe
from plkernel.common.cli import text_table

ABSENT = "-"


def render(found: Probe) -> str:
    """What is measured in words, its units, and the table."""
    unit, t = found.unit, critical_value(found.windows)
    near, along, cut, text = found.influence, found.positions, found.truncation, found.information_bits()
    columns = {"influence": (near.lags, _with_errors(near.bits, near.standard_error, t, ".2e"))}
    columns["by position"] = (along.given, _with_errors(along.bpb, along.standard_error, t, ".4f"))
    if unit != "byte":
        columns["per byte"] = (along.given, [f"{bits / found.bytes_per_token:.4f}" for bits in along.bpb])
    columns["given alone"] = (cut.given, [f"{bits:.4f}" for bits in cut.bpb])
    columns["cost"] = (cut.given, _with_errors(cut.cost, cut.standard_error, t, "+.4f"))
    if text is not None and found.information is not None:
        blocks = critical_value(len(found.information.replicates[0]))
        columns["I(d) of the text"] = (near.lags, _with_errors(*text, blocks, ".2e"))
    cells = {name: dict(zip(at, values, strict=True)) for name, (at, values) in columns.items()}
    rows = [
        [f"{at:,}", *(column.get(at, ABSENT) for column in cells.values())]
        for at in sorted(set().union(*cells.values()))
    ]
    per_byte = "" if unit == "byte" else f", {found.bits_per_token / found.bytes_per_token:.4f} bits per byte"
    length = "" if unit == "byte" else f"; a token is {found.bytes_per_token:.2f} bytes of this text"
    return "\n".join(
        [
            f"{found.windows:,} windows of {found.context:,} {unit}s: {found.bits_per_token:.4f} bits per {unit}"
            f"{per_byte}{length}",
            f"influence: how far the prediction moves (KL, bits) when the {unit} so many before it is another",
            f"by position: bits per {unit} where so many {unit}s of the window come before, since the row above",
            f"given alone: bits at the last {unit} of each window when only so many are given; cost: against all",
            "+-: 95 % intervals over windows, and of I(d) over blocks of the text",
            "",
            text_table([f"{unit}s", *cells], rows),
        ]
    )


def _with_errors(values: Iterable[float], errors: Iterable[float], t: float, form: str) -> list[str]:
    """Every value +- t errors, which one window has none of."""
    return [
        f"{value:{form}} +- {t * error:{form.lstrip('+')}}" if t * error > 0 else f"{value:{form}}"
        for value, error in zip(values, errors, strict=True)
    ]
