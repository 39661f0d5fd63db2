"""The functional probe: what any causal model makes of its context, from its predictions alone."""
