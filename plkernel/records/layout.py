"""Where the files of a study are, and the words for how far a run has come: the one place that knows them.

STUDY/spec.json                     what was to be run
STUDY/references.json               what n-grams reach on the windows of its runs
STUDY/registered.json               what it was to decide, as registered before the runs
STUDY/tuning/         the search for learning rates, a study like any other
STUDY/report/         what `plkernel.report` made of it
STUDY/ARM/seed-K/config.json        what one run resolved to
                 environment.json   commit, versions, hardware, command
                 metrics.jsonl      one row per evaluation, deterministic
                 timing.jsonl       seconds and throughput, not deterministic
                 checkpoint.safetensors, log.txt
                 result.json        written last: a run without it is unfinished
RECORD/spec.json, rows.jsonl        a study to keep: what a report needs of every ended run, a line each
RECORD/references.json              what n-grams reach, where the study has it
RECORD/registered.json              a copy
RECORD/tuning/        its search for learning rates, likewise
"""

from pathlib import Path

SPEC = "spec.json"
REGISTERED = "registered.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
RESULT = "result.json"
REPORT = "report"
REFERENCES = "references.json"
ROWS = "rows.jsonl"
TUNING = "tuning"

FINISHED = "finished"
FAILED = "failed"
DIVERGED = "diverged"
UNFINISHED = "unfinished"
NOT_STARTED = "not started"
CHECKPOINT = "checkpoint.safetensors"
LOG = "log.txt"
LOCK = ".lock"


def run_folder(study: Path, arm: str, seed: int) -> Path:
    """Where the run of `arm` at `seed` keeps its files."""
    return study / arm / f"seed-{seed}"


def name_at(arm: str, rate: float) -> str:
    """The name, in the search for learning rates, of an arm at a rate."""
    return f"{arm}_rate-{rate:g}"
