"""How information decays with distance: counts of pairs, estimates, intervals and laws."""
