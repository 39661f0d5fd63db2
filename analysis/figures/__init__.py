"""Every figure, drawn in one style from plain values."""
