"""Many runs: their schedule and engines, the search for learning rates before them, and their price."""
