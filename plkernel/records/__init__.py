"""The files of studies, in one place: their names, their states, their rows, and how they are read back.

`run` writes them and `report` reads them; neither knows the other.
"""
