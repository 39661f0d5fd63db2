"""An earlier name of `plkernel.probing.predictions`."""

from plkernel.probing.predictions import beyond, influence, probe, truncation

__all__ = ["beyond", "influence", "probe", "truncation"]
