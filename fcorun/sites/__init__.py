"""Studies whose rows stay at their sites: transport of messages, plan, tables, site and server, in this order.

It imports the rooms up to ``studies``.
"""
