"""A site that answers requests from its rows, and what it refuses.

It imports ``transport``, ``plan`` and ``tables``.
"""
