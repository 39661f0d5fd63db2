"""python -m plkernel.run CONFIG: train the run that a config.json tells of, in its folder; a study starts these."""

import sys
from pathlib import Path

import tyro

from plkernel.tools import cli
from plkernel.tools.files import load_object


def run(config: tyro.conf.Positional[Path], stop_with: int | None = None) -> None:
    """Train, or go on with, the run whose config.json this is. Prints the result.

    Args:
        config: STUDY/ARM/seed-K/config.json.
        stop_with: Stop, saved, when this parent process has ended.
    """
    from plkernel.run.objective import summary
    from plkernel.run.task import open_run
    from plkernel.run.training import run_training
    from plkernel.spec.condition import from_config

    values = load_object(cli.existing(config, "config"))
    try:
        condition, seed = from_config(values), int(values["seed"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{config} does not describe a run ({error})") from error
    task = open_run(condition, seed, config.parent)
    print(summary(task.name, run_training(task, False, stop_with)))
    print(f"written: {task.folder.path}", file=sys.stderr)


if __name__ == "__main__":
    cli.main(run)
