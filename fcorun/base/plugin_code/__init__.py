"""The code of a user's plug-in, which is part of a run's identity and kept in the record."""

from fcorun.base.plugin_code.code_files import PluginCode, find_code

__all__ = ["PluginCode", "find_code"]
