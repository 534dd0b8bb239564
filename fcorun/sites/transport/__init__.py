"""Ways of messages between a server and its sites: in this process, by a shared folder, by NVIDIA FLARE, and with
masks.

It imports no other part of ``sites``.
"""
