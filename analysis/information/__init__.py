"""How information decays with distance in a sequence: counts of pairs, estimates, intervals and
laws.
"""
