"""Many runs: which are due, in which order and on which machines, and the search for learning rates before them.

Each run is a process of `plkernel.run`; what they leave is in `records`.
"""
