"""Checks of plug-ins: the laws of each kind, for the plug-ins of fcorun and of users."""
