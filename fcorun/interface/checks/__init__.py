"""Checks of plug-ins: the properties of each kind, for the plug-ins of fcorun and of users."""
