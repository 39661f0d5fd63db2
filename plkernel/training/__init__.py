"""One run: a condition becomes a model, which is trained, evaluated and saved in a folder of its own.

After `spec` and `models`; what it writes is read through `records`, never by the report itself.
"""

from plkernel.config.condition import Condition


def check(condition: Condition) -> None:
    """ValueError where no model of the condition can be built; torch is loaded when it is called."""
    from plkernel.training.build import check as check_scheme

    check_scheme(condition)
