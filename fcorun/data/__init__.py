"""Rows, tables and data sets: a user's file or a paper's law becomes the rows of clients.

It imports ``base``.
"""
