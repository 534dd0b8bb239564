"""Intervals of a record's coefficients as a Python program gets them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fcorun.base.errors import UserError
from fcorun.base.system.files import write_atomically
from fcorun.interface.api.python_words import check_folder
from fcorun.results.models.inference_table import COLUMNS, InferenceTable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """Intervals of a record's coefficients, see ``fcorun infer``.

    Attributes:
        table: the intervals.
        description: what ``fcorun infer`` prints above its table: the method, the rows, the distance of the record
            from the certified solution, sources and tests, one sentence a line.
        warnings: what a reader of the intervals must know.
        style: the style of the picture.
    """

    table: InferenceTable
    description: str
    warnings: list[str]
    style: str = "paper"

    @property
    def frame(self) -> "pd.DataFrame":
        """The intervals by feature, as in inference.csv, all numbers as floats."""
        import pandas as pd

        frame = pd.DataFrame(self.table.to_rows(), columns=list(COLUMNS))
        numbers = [name for name in COLUMNS if name not in ("feature", "method", "label")]
        return frame.astype(dict.fromkeys(numbers, float)).set_index("feature")

    def plot(self) -> "Figure":
        """Return the forest plot, as in inference.png."""
        from fcorun.reports.pictures.forest import draw_forest
        from fcorun.reports.pictures.style import style_context

        with style_context(self.style):
            return draw_forest(self.table)

    def save(self, folder: str | Path) -> None:
        """Write inference.csv, .txt, .png and .pdf into a folder. Raises UserError for a folder that is no path."""
        from fcorun.reports.pictures.forest import make_files

        check_folder(folder)
        if folder is None:
            raise UserError("folder is None: give a path, a text or a pathlib.Path")
        Path(folder).mkdir(parents=True, exist_ok=True)
        sentences = [self.description, *(f"warning: {sentence}" for sentence in self.warnings)]
        for name, content in make_files(self.table, sentences, self.style).items():
            write_atomically(Path(folder) / name, content)

    def __repr__(self) -> str:
        return self.description

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()  # type: ignore[operator]
