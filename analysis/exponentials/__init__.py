"""Sums of decaying exponentials for a power law: by least squares, by quadrature, and the best that K terms allow."""
