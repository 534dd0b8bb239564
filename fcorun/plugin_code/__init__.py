"""The code of a user's plug-in, which is part of a run's identity and kept in the record."""

from fcorun.plugin_code.files import PluginCode, code_identifier, find_code

__all__ = ["PluginCode", "code_identifier", "find_code"]
