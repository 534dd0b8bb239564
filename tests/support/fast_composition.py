"""Composition with caches: Hydra reads and merges some twenty files a configuration, and tests compose thousands."""

import pickle
from copy import copy, deepcopy
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import hydra._internal.config_loader_impl
import hydra._internal.defaults_list
import omegaconf.base
import yaml
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import Overrides
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf.errors import OmegaConfBaseException

from fcorun.experiment.configuration.search_path import packaged_config_dir


def speed_up_composition() -> None:
    """Reuse what Hydra and OmegaConf read, parse and merge for equal files and equal choices."""
    Hydra.get_mode = lambda *_, **__: None  # composes each command once more to read hydra.mode, which no test sets
    loader: Any = hydra._internal.config_loader_impl  # their private members are replaced
    parser: Any = omegaconf.base
    Loader = loader.ConfigLoaderImpl
    Loader._process_config_searchpath = _only_if_set(Loader._process_config_searchpath)
    Loader._compose_config_from_defaults_list = _merge_once(Loader._compose_config_from_defaults_list)
    loader.create_defaults_list = _choose_once(loader.create_defaults_list)
    defaults: Any = hydra._internal.defaults_list
    defaults._create_interpolation_map = _only_if_interpolated(defaults._create_interpolation_map)
    CachingConfigRepository.__init__ = _share_sources
    OverridesParser.parse_rule = _parse_rule_once(OverridesParser.parse_rule)
    ConfigRepository.load_config = _load_once(ConfigRepository.load_config)
    yaml.load = _parse_once(yaml.load)
    parser.parse = cache(parser.parse)  # of interpolations


def _only_if_set(process):
    """Return a method that reads the main file for a search path only if the file or an override may set one."""

    def process_if_set(self, config_name, overrides, repo):
        if _other_files(repo) or any(override.is_hydra_override() for override in overrides):
            process(self, config_name, overrides, repo)

    return process_if_set


def _only_if_interpolated(create_map):
    """Return a function that collects the choices made so far only for a list with an interpolation."""

    def create_if_interpolated(overrides, defaults_list, self_added):
        if any(default.is_interpolation() for default in defaults_list if not default.is_self()):
            return create_map(overrides, defaults_list, self_added)
        return None

    return create_if_interpolated


def _share_sources(self, delegate):
    """Initialise a CachingConfigRepository without copying the folders that it reads."""
    self.delegate, self.cache = copy(delegate), {}


def _parse_rule_once(parse_rule):
    """Return a method that parses an override once."""
    parsed = {}

    def parse_once(self, s, rule_name):
        if rule_name != "override":
            return parse_rule(self, s, rule_name)
        if s not in parsed:
            parsed[s] = parse_rule(self, s, rule_name)
        return copy(parsed[s])

    return parse_once


def _choose_once(create_list):
    """Return a function that finds the files of the choices of groups once."""
    lists = {}

    def create_once(repo, config_name, overrides_list, **options):
        values = Overrides(repo=repo, overrides_list=overrides_list).config_overrides
        choices = tuple(override.input_line for override in overrides_list if override not in values)
        key = (_other_files(repo), config_name, choices, *options.values())
        if key not in lists:
            lists[key] = create_list(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
        result = copy(lists[key])
        result.config_overrides = values
        return result

    return create_once


def _merge_once(merge):
    """Return a method that merges files once, and Hydra's own files, which come first, once for all choices."""
    merged = {}

    def merge_once(self, defaults, repo):
        files = _other_files(repo)
        if (files, repr(defaults)) not in merged:
            merged[files, repr(defaults)] = pickle.dumps(merge_all(self, files, defaults, repo))
        return pickle.loads(merged[files, repr(defaults)])

    def merge_all(self, files, defaults, repo):
        count = len(list(takewhile(lambda each: each.config_path.startswith("hydra/"), defaults)))
        first, rest = defaults[:count], defaults[count:]
        if (files, repr(first)) not in merged:
            merged[files, repr(first)] = pickle.dumps(merge(self, defaults=first, repo=repo))
        config = pickle.loads(merged[files, repr(first)])
        try:
            config.merge_with(merge(self, defaults=rest, repo=repo))
        except OmegaConfBaseException:  # Hydra's error names the file
            return merge(self, defaults=defaults, repo=repo)
        return config

    return merge_once


def _load_once(load):
    """Return a method that loads fcorun's own files once."""
    loaded = {}

    def load_once(self, config_path):
        if _other_files(self):
            return load(self, config_path)
        if config_path not in loaded:
            loaded[config_path] = pickle.dumps(load(self, config_path))
        return pickle.loads(loaded[config_path])

    return load_once


def _parse_once(parse):
    """Return ``yaml.load`` with a cache by a file's text."""
    parsed = {}

    def parse_once(stream, Loader):
        if not hasattr(stream, "read"):
            return parse(stream, Loader)
        key = (stream.read(), Loader.__name__)
        stream.seek(0)
        if key not in parsed:
            parsed[key] = parse(stream, Loader)
        return deepcopy(parsed[key])

    return parse_once


def _other_files(repo):
    """Return the configuration files that are not fcorun's own, with their content."""
    folders = [source.path for source in repo.get_sources() if source.scheme() == "file"]
    files = [file for folder in folders if folder != packaged_config_dir() for file in Path(folder).rglob("*.yaml")]
    return tuple((str(file), file.read_bytes()) for file in sorted(files))
