"""Foundations that every other room uses: errors, public names, options and their checks, which code is trusted,
sources, records, files and the machine.

It imports no other room.
"""
