"""How threads of torch wait for their next operator, as the environment has it before they begin.

By default they spin for some milliseconds, on cores that other threads and processes could use.
"""

import os

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Of the environment, read by the libraries of OpenMP as they are loaded."""


def is_chosen() -> bool:
    """Whether somebody has said how threads wait."""
    return any(name in os.environ for name in VARIABLES)
