"""How information decays with distance in a sequence: counts of pairs, estimates, intervals, laws, and known cases."""
