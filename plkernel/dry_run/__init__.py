"""What a study will take before it is started: parameters, operations, memory and hours, by count and by trial.

Beside `study`, for `plkernel.experiment --dry-run`.
"""
