"""Imports that take long, while the processor's cores are busy with something else anyway or have nothing to do."""

import threading
from importlib import import_module

PICTURES = ("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.legend", "matplotlib.ticker")
TABLES = ("pandas",)


def import_in_background(*modules: str) -> None:
    """Import modules in a thread, so that nobody waits for them later; who needs one that is not there says so."""

    def load() -> None:
        for module in modules:
            try:
                import_module(module)
            except ImportError:
                return

    threading.Thread(target=load, daemon=True).start()
