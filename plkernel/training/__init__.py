"""One run: a condition becomes a model, which is trained, evaluated and saved in a folder."""

from plkernel.config.condition import Condition


def check(condition: Condition) -> None:
    """Raise ValueError where no model of the condition can be built.

    torch is loaded when it is called.
    """
    from plkernel.training.build import Prepared

    Prepared.of(condition)
