"""The report of a study: arms compared seed by seed, then tables, sentences, figures and one page.

Last on the way of the data; it reads `records` and nothing that trains.
"""
