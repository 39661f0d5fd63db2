"""The price of a study before it is started: parameters, operations, memory and hours, by count and by trial.

Beside `study`, for `plkernel.experiment --dry-run`.
"""
