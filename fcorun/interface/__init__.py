"""The doors: the command line, the Python interface, and the checks of plug-ins.

It imports every other room.
"""
