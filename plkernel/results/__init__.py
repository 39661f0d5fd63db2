"""The results of a study: read, measured, compared seed by seed, judged, and put on one page."""
