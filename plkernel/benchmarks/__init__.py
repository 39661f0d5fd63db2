"""Operators and training steps beside other software: checked first, then timed in turns."""
