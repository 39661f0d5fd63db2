"""Every scheme by name: importing this package registers them."""

import importlib
import pkgutil

for module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(module.name)
