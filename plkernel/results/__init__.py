"""The report of a study: arms compared seed by seed, then tables, sentences, figures and one
page.
"""
