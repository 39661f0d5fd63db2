"""python -m plkernel.train SPEC: one run of one arm, with TensorBoard, checkpoints and resume."""

import sys
from pathlib import Path

from plkernel.common.files import check_folder
from plkernel.config import reading
from plkernel.config.spec import Spec
from plkernel.training import check
from plkernel.training.curves import LoggerName


def command(
    spec: Spec,
    arm: str | None = None,
    seed: int | None = None,
    out: Path | None = None,
    logger: LoggerName | None = None,
    trust_code: bool = False,
) -> None:
    """Train one arm of a spec at one seed and print the result; the same command resumes the run.

    With tuning.rates its learning rate is that which plkernel.experiment has found in OUT. A
    registration of the study is copied to OUT, where its runs find it.

    Args:
        arm: Name of the arm; the spec's baseline if left out.
        seed: One of the spec's seeds; its first if left out.
        out: Folder of the study; runs/out/NAME if left out.
        logger: Also send the learning curves to this library, which the extra of its name installs.
        trust_code: Import and run the code that the spec names.
    """
    chosen = arm or spec.baseline
    seed = spec.seeds[0] if seed is None else seed
    if seed not in spec.seeds:
        known = ", ".join(map(str, spec.seeds))
        raise ValueError(
            f"seed must be one of the spec's seeds, {known}, got {seed}; add it to the spec to"
            " train it"
        )
    folder = out or Path("runs/out") / spec.name
    from plkernel.common.environment import keep_memory
    from plkernel.data.names import check_outside
    from plkernel.study.schedule import keep_registration, settled_for
    from plkernel.training.loop import prepare, run_training, summary

    keep_memory()
    check_folder(folder, "out")
    check_outside({"out": folder}, [spec.corpus_of(chosen).name])
    if arm is None:
        others = ", ".join(repr(name) for name in spec.arms if name != spec.baseline)
        hint = f"; others: {others}" if others else ""
        print(f"arm {spec.baseline!r}, the baseline, as --arm names none{hint}", file=sys.stderr)
    spec = settled_for(spec, chosen, folder)
    task = prepare(spec, chosen, seed, folder)
    keep_registration(spec, folder)
    print(summary(task.name, run_training(task, logger=logger)))
    print(f"written: {task.folder.path}", file=sys.stderr)


if __name__ == "__main__":
    reading.main(command, check=check)
