"""Regenerate the figures of papers; the same as fcorun figure.

python scripts/reproduce.py                         # what there is
python scripts/reproduce.py fco_fig3a fco_fig3b     # these
python scripts/reproduce.py all --fast              # smaller versions, a minute each at most
python scripts/reproduce.py fco_fig5 data.root=/scans data.subjects=[1,2]   # overrides for every run
"""

import sys

from fcorun.cli.commands import main

if __name__ == "__main__":
    sys.exit(main(["figure", *sys.argv[1:]]))
