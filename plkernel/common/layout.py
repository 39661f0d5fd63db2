"""Names of the files of a study, and the states of a run.

STUDY/spec.json                     the spec, settled
STUDY/references.json               losses of n-grams on the windows of its runs
STUDY/registered.json               the registration of its hypotheses
STUDY/tuning/                       the search for learning rates, a study like any other
STUDY/report/                       written by `plkernel.report`; of a record report/page may be kept
STUDY/ARM/seed-K/config.json        the resolved configuration of one run
                 environment.json   commit, versions, hardware, command
                 metrics.jsonl      one row per evaluation, deterministic
                 timing.jsonl       seconds and throughput, not deterministic
                 checkpoint.safetensors, log.txt
                 result.json        written last: a run without it is unfinished
RECORD/spec.json, rows.jsonl        a study to keep: one line per ended run, enough for a report
RECORD/references.json, registered.json, tuning/    as in the study
"""

from pathlib import Path

SPEC, REFERENCES, REGISTERED, ROWS = "spec.json", "references.json", "registered.json", "rows.jsonl"
CONFIG, ENVIRONMENT, RESULT = "config.json", "environment.json", "result.json"
METRICS, TIMING, CHECKPOINT, LOG, LOCK = "metrics.jsonl", "timing.jsonl", "checkpoint.safetensors", "log.txt", ".lock"
TUNING, REPORT, PAGE = "tuning", "report", "page"
FINISHED, FAILED, DIVERGED, UNFINISHED = "finished", "failed", "diverged", "unfinished"
NOT_STARTED = "not started"


def run_folder(study: Path, arm: str, seed: int) -> Path:
    """Return the folder of the run of `arm` at `seed`."""
    return study / arm / f"seed-{seed}"


def name_at(arm: str, rate: float) -> str:
    """Return the name of an arm at a learning rate, in the search for rates."""
    return f"{arm}_rate-{rate:g}"
