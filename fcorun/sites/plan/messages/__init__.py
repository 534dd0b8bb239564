"""The messages: all that a site may be asked, a class for each in a file for each family.

It imports the options of plans and ``transport``, and of a site the type alone.
"""
