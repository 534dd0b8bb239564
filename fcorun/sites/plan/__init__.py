"""The plan of a study: what it may compute and what leaves a site, its checks, and the policy of a site's owner.

It imports ``transport``.
"""
