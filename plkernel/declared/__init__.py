"""What a study was to decide: its hypotheses in words, their registration before the runs, and the verdicts after.

`experiment` registers, `report` judges; both by the rules here, which `analysis/statistics/hypotheses.py` computes.
"""
