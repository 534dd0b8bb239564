"""Make docs/four_clinics.ipynb, with its outputs, of docs/four_clinics.py: python docs/make_notebook.py"""

from pathlib import Path

import jupytext
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

TEXT = Path(__file__).with_name("four_clinics.py")


def made() -> nbformat.NotebookNode:
    """The notebook, run by a kernel of this environment."""
    notebook = jupytext.read(TEXT)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc")  # no port is opened
    NotebookClient(notebook, km=kernel, timeout=300, record_timing=False).execute()
    for noise in ("jupytext", "language_info"):  # the versions of this machine
        notebook.metadata.pop(noise, None)
    return notebook


if __name__ == "__main__":
    nbformat.write(made(), TEXT.with_suffix(".ipynb"))
