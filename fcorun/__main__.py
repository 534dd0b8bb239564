"""``fcorun``, and ``python -m fcorun``."""

import sys


def main() -> None:
    """The command; an interruption while modules are still being imported ends it in silence."""
    try:
        from fcorun.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
