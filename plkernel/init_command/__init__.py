"""python -m plkernel.init: the initialisation schemes by name, what each does to a model, and what that does."""
