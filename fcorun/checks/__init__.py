"""Checks of plug-ins: the laws of each kind, which hold for fcorun's own and are to hold for a user's."""
