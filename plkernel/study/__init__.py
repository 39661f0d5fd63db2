"""Many runs: their schedule, the processes that train them, the search for learning rates, and the
price.
"""
