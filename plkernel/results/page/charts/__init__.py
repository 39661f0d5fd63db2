"""Figures of a page as plain values: places in a frame, words at its edges; the page draws them at any width."""
