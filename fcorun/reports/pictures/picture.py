"""The shelf of pictures: each is one file of this folder, which declares its data and its drawing as ``PICTURE``.

A picture is found by itself, written as NAME.png beside the records, and shown on the page.
"""

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from fcorun.reports.pictures.drawing_processes import draw_later
from fcorun.reports.pictures.layout import render_formats, style_context

Subject = TypeVar("Subject")
Content = TypeVar("Content")


@dataclass(frozen=True)
class Picture(Generic[Subject, Content]):
    """A picture: what it is of, what it shows, and how it is drawn.

    Attributes:
        name: the name of its files without the ending.
        subject: the class of what is drawn: ``ProblemView`` for the runs of a sweep, ``CurveView`` for held-out rows,
            ``RunView`` for one run, ``ModelView`` for a linear model, ``SelectionView`` for a choice of strength.
        collect: returns the data of the picture, a frozen dataclass; None: it does not apply to this subject.
        draw: returns the figure of these data, in the current style.
        place: pictures of one subject are written and shown in the order of their places.
        title: the heading of its section on the page of a sweep; empty: the page shows something else instead.
        caption: the sentences below the picture on a page.
    """

    name: str
    subject: type[Subject]
    collect: Callable[[Subject], Content | None]
    draw: Callable[[Content], Any]
    place: int = 0
    title: str = ""
    caption: str = ""

    def __reduce__(self):
        """Return how another process finds this picture, whose functions may be anonymous."""
        return _load_picture, (self.draw.__module__,)

    def render(self, subject: Subject, formats: Sequence[str] = ("png",), style: str = "paper") -> dict[str, bytes]:
        """Return the picture of a subject as files by format; {} if there is nothing to draw."""
        with style_context(style):
            figure = self.draw_subject(subject)
            return {} if figure is None else render_formats(figure, formats)

    def draw_subject(self, subject: Subject) -> Any:
        """Return the figure of a subject in the current style; None if there is nothing to draw."""
        content = self.collect(subject)
        return None if content is None else self.draw(content)


@cache
def find_pictures(subject: type) -> tuple[Picture, ...]:
    """Return the pictures of the shelf that are of subjects of this class, in the order of their places."""
    found = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        picture = getattr(import_module(module.name), "PICTURE", None)
        if picture is not None and picture.subject is subject:
            found.append(picture)
    return tuple(sorted(found, key=lambda picture: picture.place))


def _load_picture(module: str) -> Picture:
    """Return the picture of a file of the shelf."""
    return import_module(module).PICTURE


def render_pictures(subject: Any, *, formats: Sequence[str] = ("png",), style: str = "paper") -> dict[str, bytes]:
    """Return the pictures of a subject that apply to it, a file in each format, by file name."""
    return begin_pictures(subject, formats=formats, style=style)()


def begin_pictures(
    subject: Any, *, formats: Sequence[str] = ("png",), style: str = "paper"
) -> Callable[[], dict[str, bytes]]:
    """Begin to draw the pictures of a subject, and return the function that returns them as ``render_pictures``."""
    pictures = find_pictures(type(subject))
    drawings = [draw_later(picture.render, subject, formats, style) for picture in pictures]

    def finish() -> dict[str, bytes]:
        files = {}
        for picture, wait in zip(pictures, drawings, strict=True):
            files |= {f"{picture.name}.{format}": content for format, content in wait().items()}
        return files

    return finish
