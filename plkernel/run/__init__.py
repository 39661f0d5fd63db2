"""One run: a condition becomes a model, which is trained, evaluated and saved in a folder of its own.

After `spec` and `models`; what it writes is read through `records`, never by the report itself.
"""
