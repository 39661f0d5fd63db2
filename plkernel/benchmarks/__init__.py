"""Operators, training steps and pair counts beside other software: checked first, then timed in turns."""
