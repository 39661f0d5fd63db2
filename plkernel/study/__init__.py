"""Many runs: their schedule, what trains them, the search for learning rates, and the price."""
