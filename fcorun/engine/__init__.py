"""The computation: rounds as compiled programs, segments of rounds, evaluation, and the same where rows stay at their
sites.

It imports ``base``, ``data`` and ``methods``.
"""
