"""The site builds without a warning and without a network, and has every plug-in; the notebook is what its text gives."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import names, plugin_class

from fcorun.cli.commands import COMMANDS
from fcorun.cli.keys import GROUPS, root_keys
from fcorun.sources.catalogue import catalogue

DOCS = Path(__file__).resolve().parents[2] / "docs"
