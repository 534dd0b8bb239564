"""``python -m fcorun``."""

from fcorun.cli import main

if __name__ == "__main__":
    main()
