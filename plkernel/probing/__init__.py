"""Models that run on a text: their predictions, the decays it makes them take, trained runs."""
