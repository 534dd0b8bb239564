"""Make docs/four_clinics.ipynb, with its outputs, of docs/four_clinics.py: python docs/make_notebook.py [OUT]"""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

TEXT = Path(__file__).with_name("four_clinics.py")


def made() -> nbformat.NotebookNode:
    """The notebook, run by a kernel of this environment."""
    notebook = jupytext.read(TEXT)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    no_port = Config({"KernelManager": {"transport": "ipc"}})
    NotebookClient(notebook, config=no_port, kernel_name="python3", timeout=300, record_timing=False).execute()
    for noise in ("jupytext", "language_info"):  # the versions of this machine
        notebook.metadata.pop(noise, None)
    return notebook


if __name__ == "__main__":
    nbformat.write(made(), sys.argv[1] if sys.argv[1:] else TEXT.with_suffix(".ipynb"))
