"""python -m plkernel.run CONFIG ...: train the run that a config.json tells of; a study starts these, some as one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from plkernel.common import cli
from plkernel.common.files import load_object

if TYPE_CHECKING:
    from plkernel.training.loop import Task


def run(
    configs: tyro.conf.Positional[tuple[Path, ...]], stop_with: int | None = None, trust_code: bool = False
) -> None:
    """Train, or go on with, the run whose config.json this is; several, of equal shape, as one. Prints the results.

    Args:
        configs: STUDY/ARM/seed-K/config.json.
        stop_with: Stop, saved, when this parent process has ended.
        trust_code: The code that they name may be imported and run.
    """
    from plkernel.common.process_memory import keep_memory
    from plkernel.together.training import Outcome, train_together
    from plkernel.training.objective import summary
    from plkernel.training.loop import run_training

    keep_memory()
    tasks = [_task(config, trust_code) for config in configs]
    if len(tasks) == 1:
        outcomes: list[Outcome] = [run_training(tasks[0], False, stop_with)]
    else:
        outcomes = train_together(tasks, stop_with)
    for task, outcome in zip(tasks, outcomes, strict=True):
        if isinstance(outcome, Exception):
            print(f"{task.name}: {outcome}", file=sys.stderr)
        else:
            print(summary(task.name, outcome))
            print(f"written: {task.folder.path}", file=sys.stderr)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failed:
        raise failed[0]


def _task(config: Path, trusted: bool) -> "Task":
    """The run of a config.json; ValueError where it describes none."""
    from plkernel.config.condition import from_config
    from plkernel.training.loop import open_run

    values = load_object(cli.existing(config, "config"))
    try:
        condition, seed = from_config(values, trusted), int(values["seed"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{config} does not describe a run ({error})") from error
    return open_run(condition, seed, config.parent)


if __name__ == "__main__":
    cli.main(run)
