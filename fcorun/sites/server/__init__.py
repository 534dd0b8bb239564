"""The server of a study: it asks the sites, adds up their answers, and makes the record.

It imports every other part of ``sites``.
"""
