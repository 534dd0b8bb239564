"""Reproduce the figures of papers, as fcorun figure does.

python scripts/reproduce.py                         # lists the figures
python scripts/reproduce.py fco_fig3a fco_fig3b     # two figures
python scripts/reproduce.py all --fast              # smaller versions of all figures, a minute each at most
python scripts/reproduce.py fco_fig5 data.root=/scans data.subjects=[1,2]   # overrides for every run
"""

import sys

from fcorun.interface.cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["figure", *sys.argv[1:]]))
