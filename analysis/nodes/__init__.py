"""Where N channels have their decays and what their projections are multiplied by, for a law and an input gain."""

from plkernel.analysis.nodes.node_set import Aim, Nodes
from plkernel.analysis.nodes.placement import place

__all__ = ["Aim", "Nodes", "place"]
