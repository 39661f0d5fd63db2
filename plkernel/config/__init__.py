"""Studies as data: a spec is read and checked here, without torch, and resolved into conditions.

Between the measured law and the models; `study` runs what a spec says, `dry_run` says what it would take.
"""
