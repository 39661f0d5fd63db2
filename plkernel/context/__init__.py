"""What a model does with its context: influence, truncation, loss by position; as figures too."""
