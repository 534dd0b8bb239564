"""The version of fcorun."""

from importlib.metadata import PackageNotFoundError, version

_NOT_INSTALLED = "0.0.0+source"


def fcorun_version() -> str:
    """Return the installed version, or 0.0.0+source where Python runs fcorun from its sources without installation."""
    try:
        return version("fcorun")
    except PackageNotFoundError:
        return _NOT_INSTALLED
