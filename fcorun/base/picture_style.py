"""The names of the styles and of the files of pictures."""

from typing import Annotated, Literal, get_args

from fcorun.base.errors import UserError

FigureStyle = Literal["paper", "slides"]  # the size of pictures and of their texts
PICTURE_WIDTHS = (3.5, 5.5, 7.0)  # inches: of a column, of a page with one column, of a page with two
WIDTH_FORM = "3.5, 5.5 or 7"
PictureWidth = Annotated[float, WIDTH_FORM]
FORMATS = ("png", "pdf", "svg")


def name_picture_style(style: str, width: float | None) -> str:
    """Return the name of the style of pictures of a width in inches; None: of the widths that the style has.

    Raises UserError for a width of another style than paper.
    """
    if width is None:
        return style
    if style != "paper":
        raise UserError(f"`width={width:g}` is the width of pictures on paper: leave it or `style={style}` out")
    return f"paper width={width:g}"


def name_recorded_style(style: str, width: float | None) -> str:
    """Return the name of the style of a record or a sweep; that of paper for a style that fcorun does not have."""
    return name_picture_style(style, width) if style in get_args(FigureStyle) else "paper"


def name_picture_files(*pictures: str) -> list[str]:
    """Return the names of the files of pictures in all formats."""
    return [f"{picture}.{format}" for picture in pictures for format in FORMATS]
