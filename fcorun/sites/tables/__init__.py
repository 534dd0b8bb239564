"""The table of a site: how it is read, checked by the rules, described, and encoded as all sites agree; the owner's
ledger.

It imports ``transport`` and ``plan``.
"""
