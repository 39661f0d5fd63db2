"""Use of the context by a model: influence, truncation, loss by position; as figures too."""
