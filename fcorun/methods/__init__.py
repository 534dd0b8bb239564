"""The papers: regularizers, mirror maps, objectives, the problem, algorithms, clocks and communication, one idea a
file.

It imports ``base`` and ``data``.
"""
