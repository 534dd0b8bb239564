"""Make docs/four_clinics.ipynb, with outputs, from docs/four_clinics.py: python docs/make_notebook.py [OUT]"""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

TEXT = Path(__file__).with_name("four_clinics.py")


def execute_notebook() -> nbformat.NotebookNode:
    """Execute the notebook in a kernel of this environment."""
    notebook = jupytext.read(TEXT)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    no_port = Config({"KernelManager": {"transport": "ipc"}})
    NotebookClient(notebook, config=no_port, kernel_name="python3", timeout=300, record_timing=False).execute()
    for key in ("jupytext", "language_info"):  # depend on the versions of this machine
        notebook.metadata.pop(key, None)
    return notebook


if __name__ == "__main__":
    nbformat.write(execute_notebook(), sys.argv[1] if sys.argv[1:] else TEXT.with_suffix(".ipynb"))
