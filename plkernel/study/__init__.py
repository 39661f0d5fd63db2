"""Many runs: which are due and on which machines, the search for learning rates before them, and their price.

Each run is a process of `plkernel.run`; what they leave is read through `records`.
"""
