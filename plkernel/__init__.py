"""plkernel: the memory of a state-space model, held against the memory in its data.

The way of the data: data -> analysis -> spec -> models -> run -> records -> report. The modules of this folder are the
commands; what they call stands in the packages beside them, whose docstrings say where on the way they are.
"""

import os
import sys

__version__ = "0.1.0"

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_COMMANDS = ("-m", "plkernel", "plkernel.exe", "plkernel-script.py")
if os.path.basename("".join(sys.argv[:1])) in _COMMANDS and not any(name in os.environ for name in _WAITING):
    # A command, whose torch is still to be loaded: between operators its threads sleep. As they come they spin for some
    # milliseconds after each, on cores that the compiled kernels and other processes could use.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
