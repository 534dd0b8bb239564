"""Things that people read: tables, pictures and the page, made from records.

It imports the rooms up to ``results``.
"""
