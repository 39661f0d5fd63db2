"""Operators, training steps and counts against their peers, and what a second thread brings."""

from collections.abc import Sequence
from typing import Any

from tables.records import load, markdown, source


def bench() -> str:
    """The scan and the training step against their peers."""
    scan, train = load("bench/scan.json"), load("bench/train.json")
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in scan["rows"]))
    contenders = list(dict.fromkeys(row["contender"] for row in scan["rows"] if row["ratio"]))

    def ratio(shape: tuple[int, ...], contender: str) -> str:
        row = next(row for row in scan["rows"] if tuple(row["shape"]) == shape and row["contender"] == contender)
        return f"{row['ratio']['median']:.1f}" if row["ratio"] else "-"

    scans = markdown(
        ["forward and backward, time over ours at (B,T,D)", *("x".join(map(str, shape)) for shape in shapes)],
        [[contender, *(ratio(shape, contender) for shape in shapes)] for contender in contenders],
    )
    peaks = scan["memory"]
    memory = f"Peak memory beyond the inputs: {peaks['plkernel']:.1f} tensors of (B,T,D)."
    parts = [scans, f"{memory} {source(scan['environment'])}", step("training step", train), threads()]
    return "\n\n".join(part for part in parts if part)


def rwkv_steps() -> str:
    """The training steps of RWKV-6 and RWKV-7 against their matrix products and a transformer."""
    names = {"Finch": "bench/train-rwkv6.json", "Goose": "bench/train-rwkv7.json"}
    return "\n\n".join(step(f"training step of {name}", load(path)) for name, path in names.items())


def step(title: str, record: dict[str, Any]) -> str:
    """A training step against its peers."""
    header = [f"{title}, context {record['context']}, batch {record['batch']}", "parameters", "kB/s", "time over ours"]
    lines = [
        [
            row["contender"],
            f"{row['parameters']:,}",
            f"{row['bytes_per_second'] / 1e3:.1f}",
            f"{row['ratio']['median']:.2f}",
        ]
        for row in record["rows"]
    ]
    return f"{markdown(header, lines)}\n\n{source(record['environment'])}"


def threads() -> str:
    """What a second thread brings: now, and in the records of another processor and an earlier commit."""
    now = [row for name in ("wkv", "scan", "train") for row in load(f"bench/{name}.json").get("threads", [])]
    before = load("bench/threads-before.json")
    commit = before["environment"]["commit"][:10]
    note = f"Before threads that bring nothing were left out, commit {commit}:"
    return f"{speedups(now)}\n\n{note}\n\n{speedups(before['threads'])}"


def speedups(found: Sequence[dict[str, Any]]) -> str:
    """Two threads against one: a line for each work, a column for each setting."""
    works = list(dict.fromkeys(row["work"] for row in found))
    settings = list(dict.fromkeys((row["processor"], row["neighbours"]) for row in found))
    cells = {(row["work"], row["processor"], row["neighbours"]): row["speedup"] for row in found}

    def cell(work: str, setting: tuple[str, int]) -> str:
        value = cells[work, *setting]
        return f"{value['median']:.2f} ({value['low']:.2f} to {value['high']:.2f})"

    columns = [f"{name}{', beside a busy process' if beside else ''}" for name, beside in settings]
    lines = [[work, *(cell(work, setting) for setting in settings)] for work in works]
    return markdown(["two threads, times as fast as one (quartiles)", *columns], lines)


def recurrence() -> str:
    """The recurrence of RWKV-6 against its peers, and its memory."""
    return _recurrence(load("bench/wkv.json"))


def delta_rule() -> str:
    """The recurrence of RWKV-7 against its peers, its memory, and its time by length."""
    record = load("bench/wkv7.json")
    steps = {int(length): spread["median"] / 1e3 for length, spread in record["lengths"].items()}
    listed = ", ".join(f"{microseconds:.1f} at {length:,}" for length, microseconds in steps.items())
    return f"{_recurrence(record)}\n\nMicroseconds per step and head of 64, by length: {listed}."


def _recurrence(record: dict[str, Any]) -> str:
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in record["rows"]))
    contenders = list(dict.fromkeys(row["contender"] for row in record["rows"] if row["ratio"]))
    found = {(tuple(row["shape"]), row["contender"]): row for row in record["rows"]}

    def line(contender: str) -> list[str]:
        ratios = [found[shape, contender]["ratio"] for shape in shapes]
        strong = found[shapes[0], contender]["strong_error"]
        error = "overflows" if strong is None or strong == float("inf") else f"{strong:.0e}"
        peak = record["memory"].get(contender)
        memory = f"{peak / 1e6:.0f}" if peak else ""
        return [contender, *(f"{ratio['median']:.1f}" if ratio else "-" for ratio in ratios), error, memory]

    first, *others = ("x".join(map(str, shape)) for shape in shapes)
    header = [f"forward and backward, time over ours at (B,T,H,N) {first}", *others, "error, strong decays", "MB"]
    seconds = found[shapes[0], "plkernel"]["seconds"]["median"]
    note = f"Ours takes {seconds * 1e3:.0f} ms at {first}. MB: forward and backward, beyond the inputs."
    return f"{markdown(header, [line(name) for name in contenders])}\n\n{note} {source(record['environment'])}"


def counts() -> str:
    """Counting pairs against other people's software."""
    record = load("bench/mi.json")
    lines = [
        [row["contender"], row["work"], f"{row['rate']:,.0f}", f"{row['ratio']['median']:.1f}"]
        for row in record["rows"]
        if row["ratio"]
    ]
    table = markdown(["counting pairs of bytes", "work", "MB per second and lag", "time over ours"], lines)
    return f"{table}\n\n{source(record['environment'])}"


def compiled() -> str:
    """Registers, spills and occupancy of each kernel, one column for each chip."""
    from plkernel.benchmarks.compiled.command import CHIPS

    record = load("bench/compiled.json")
    found = {(row["kernel"], row["chip"]): row for row in record["rows"]}
    lines = []
    for kernel in dict.fromkeys(row["kernel"] for row in record["rows"]):
        several = [found[kernel, chip] for chip in CHIPS]
        spilled = [f", {row['spilled']} B spilled" if row["spilled"] else "" for row in several]
        cells = [
            f"{row['registers']}{more}, {row['occupancy']:.0%}" for row, more in zip(several, spilled, strict=True)
        ]
        lines.append([f"`{kernel}`", str(several[0]["warps"]), f"{several[0]['shared'] / 1024:.1f}", *cells])
    table = markdown(
        ["kernel", "warps", "shared KB", *(f"{chip.name} (sm_{key})" for key, chip in CHIPS.items())], lines
    )
    spilling = [row for row in record["rows"] if row["spilled"]]
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(row["kernel"] for row in spilling))
    shares = ", ".join(f"{row['local']} of {row['instructions']} (sm_{row['chip']})" for row in spilling)
    inner = sum(row["innermost"] for row in spilling) or "none"
    environment = record["environment"]
    return (
        f"{table}\n\nUnder each chip: registers of a thread, and the share of a multiprocessor's warps that they and "
        f"shared memory leave room for. Of the instructions of {names}, those that store or load what is spilled are "
        f"{shares}, {inner} of them in an inner loop. `{environment['command']}`, commit {environment['commit'][:10]}, "
        f"triton {environment['versions']['triton']}, no GPU."
    )
