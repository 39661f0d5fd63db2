"""python -m plkernel.run CONFIG: train the run that a config.json describes, as a study does."""

import sys
from pathlib import Path

import tyro

from plkernel.common import cli
from plkernel.common.files import load_object
from plkernel.training.curves import LoggerName


def run(
    config: tyro.conf.Positional[Path],
    stop_with: int | None = None,
    code_tried: bool = False,
    trust_code: bool = False,
    logger: LoggerName | None = None,
) -> None:
    """Train the run that a config.json describes, or resume it, and print the result.

    Args:
        config: The file STUDY/ARM/seed-K/config.json of the run.
        stop_with: Save the run and stop when the process with this id has ended.
        code_tried: Do not try the code that the run names; the parent process has tried it.
        trust_code: Import and run the code that the run names.
        logger: Also send the learning curves to this library, which the extra of its name installs.
    """
    from plkernel.common.environment import keep_memory
    from plkernel.config.condition import from_config
    from plkernel.config.spec import heading
    from plkernel.training.loop import open_run, run_training, summary

    keep_memory()
    cli.existing(config, "config")
    with heading("config "):
        values = load_object(config)
    try:
        condition = from_config(values, trust_code)
        seed = int(values["seed"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{config} must describe a run, as a config.json does that plkernel wrote, got {error}"
        ) from error
    task = open_run(condition, seed, config.parent, checked=code_tried)
    print(summary(task.name, run_training(task, False, stop_with, logger)))
    print(f"written: {task.folder.path}", file=sys.stderr)


if __name__ == "__main__":
    cli.main(run)
