"""Where N channels have their decays and what their projections are multiplied by, for a law and an input gain."""
