"""Composition of configuration files and overrides by Hydra, and its errors as sentences for the user."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from fcorun.config import (
    AUTO,
    SECTIONS,
    Settings,
    build_plugin,
    import_classes,
    keys_outside_identity,
    locate_user_class,
)
from fcorun.configuration.key_docs import read_choice
from fcorun.configuration.search_path import (
    describe_yaml_error,
    find_choices,
    packaged_config_dir,
    read_yaml,
    use_config_dir,
    user_config_dir,
)
from fcorun.errors import UserError, suggest_name

if TYPE_CHECKING:
    from fcorun.experiment.experiment import PreparedExperiment


# Overrides, KEY=VALUE, before Hydra composes them.

_NOT_READ_AS_TEXT = re.compile(r"[+-]?[\d_.]+(e[+-]?\d+)?|null|true|false|nan|[+-]?inf", re.IGNORECASE)
_MAPPING_NAME = re.compile(r"[\w \\()\[\]{}:=,./%+*@?|-]+", re.ASCII)
_GROUP_OVERRIDE = re.compile(rf"\+{{0,2}}({'|'.join((*SECTIONS, 'experiment'))})=(.*)", re.DOTALL)


def override_key(override: str) -> str:
    """Return the key of an override, without the signs before it."""
    return override.partition("=")[0].lstrip("+")


def check_overrides(overrides: Any) -> None:
    """Raise UserError for overrides that are no list of texts."""
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise UserError(f"overrides is {overrides!r}: give a list of texts KEY=VALUE")
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"overrides has {override!r}: give texts KEY=VALUE")


def translate_folder(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with Hydra's key of the folder in place of ``out=DIR``.

    Without out=DIR the arguments are returned as they are. Raises UserError for two folders, and for an empty out=.
    """
    given = [text for text in arguments if override_key(text) == "out" and "=" in text]
    if not given:
        return [*arguments]
    is_sweep = bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & {*arguments})
    key = "hydra.sweep.dir" if is_sweep else "hydra.run.dir"
    others = [text for text in arguments if text not in given]
    if len(given) > 1 or any(override_key(text) == key for text in others):
        raise UserError(f"the folder is given twice, as {given[0]} and again: give one out=DIR")
    folder = given[0].partition("=")[2]
    if not folder:
        raise UserError("out= names no folder: give out=DIR")
    if _NOT_READ_AS_TEXT.fullmatch(folder):
        folder = f"'{folder}'"  # Hydra would read 2026_05 as 202605
    return [*others, f"{key}={folder}"]


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    r"""Return the arguments of the command line in the form that Hydra takes.

    -m is moved to the front, and ``+experiment=NAME`` becomes ``experiment=NAME``. Two kinds of values are put into
    quotes: an IPv6 address, which Hydra would read as a list, and a network path of Windows (``\\server\share``), of
    whose two leading backslashes Hydra would drop one.

    Raises UserError for a value of a group that is no name, for a strength that is given twice, for a list of files as
    ``data.path``, and for Hydra's option that runs the content of a pickle.
    """
    given_keys = {override_key(text) for text in arguments if not text.endswith("=null")}
    if {"reg.strength", "reg.relative"} <= given_keys:
        raise UserError("reg.relative sets the strength: give reg.relative or reg.strength, not both")
    for argument in arguments:
        if argument.startswith("--experimental-rerun"):
            raise UserError("--experimental-rerun reads a pickle, which may hold any program: give the keys again")
        if re.fullmatch(r"\+{0,2}data\.path=\[.*\]", argument, re.DOTALL):
            raise UserError(f"{argument}: data.path is one file: join the tables into one, with a column that names "
                            "each row's client (data.client); rows that stay apart need fcorun plan")  # fmt: skip
        if match := _GROUP_OVERRIDE.fullmatch(argument):
            _check_group(match[1], match[2], argument)
    normalized = []
    for argument in sorted(arguments, key=lambda argument: argument not in ("-m", "--multirun")):
        argument = re.sub(r"^(hosts\.address)=(\[.*\]:\d*)$", r'\1="\2"', argument)
        argument = re.sub(r"^([\w.+]+)=(\\\\[^\"',]*[^\"',\\])$", r'\1="\2"', argument)
        normalized.append(re.sub(r"^\+{1,2}(?=experiment=)", "", argument))
    return normalized


def _check_group(group: str, text: str, argument: str) -> None:
    """Raise UserError if an override of a group has a value that is no name of a choice."""
    try:
        override = OverridesParser.create().parse_override(argument)
        values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    except HydraException:  # composing reports the error; a pattern, glob(...), matches names only
        return
    for value in values:
        if isinstance(value, str) or (value is None and group == "experiment"):
            continue
        advice = ""
        if isinstance(value, list):
            advice = f"; several are a sweep, fcorun -m {group}={text.strip('[]')}"
        elif isinstance(value, (int, float)):
            advice = f"; numbers go to its keys, which fcorun help {group} lists"
        choices = find_choices(group)
        suggestion = suggest_name("none" if value is None and "none" in choices else "", choices)
        raise UserError(f"{group}={text} must be the name of one choice: {suggestion}{advice}")


def split_overrides(job: str) -> list[str]:
    """Return the overrides of a job that is given as one text: split at spaces, unless quoted or after a backslash."""
    return re.findall(r"""(?:\\.|[^\s'"\\]|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\)+""", job)


def format_value(value: Any) -> str:
    r"""Return a value as text of an override, which Hydra and ``split_overrides`` read back as the same value.

    Raises UserError for a name in a mapping that Hydra's overrides cannot hold: it may have letters from A to Z,
    digits, spaces, and the characters _ . - / % + * @ ? | \ ( ) [ ] { } : = , alone.

    >>> print(format_value({"ward=surgery": 0, "blood pressure": [1.5, "it's"]}))
    {ward\=surgery:0,blood\ pressure:[1.5,"it's"]}
    """
    if isinstance(value, Mapping):
        pairs = [_escape_name(str(name)) + ":" + format_value(item) for name, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(format_value(item) for item in value) + "]"
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value) and not _NOT_READ_AS_TEXT.fullmatch(value):
        return value
    return quote_text(value, '"')


def _escape_name(name: str) -> str:
    """Return a name of a mapping with backslashes before the characters that end it, since Hydra takes no quotes.

    Raises UserError for other names than Hydra's.
    """
    is_other_value = _NOT_READ_AS_TEXT.fullmatch(name) and not (name.isdecimal() and str(int(name)) == name)
    if is_other_value or not _MAPPING_NAME.fullmatch(name):
        raise UserError(f"the name '{name}' cannot be part of an override: rename the column, or write the mapping "
                        "into a configuration file of yours")  # fmt: skip
    return re.sub(r"([\\()\[\]{}:=,\s])", r"\\\1", name)


def quote_text(text: str, quote: str) -> str:
    """Return a text in quotes of Hydra, in which backslashes count only before a quote."""
    escaped = re.sub(rf"(\\*){quote}", lambda match: f"{match[1]}{match[1]}\\{quote}", text)
    trailing = escaped[len(escaped.rstrip("\\")) :]
    return f"{quote}{escaped}{trailing}{quote}"


def quote_for_shell(override: str) -> str:
    """Return an override in quotes for a shell; for values with quotes, braces or backslashes the form 'KEY="TEXT"'."""
    key, _, value = override.partition("=")
    if set("'\"{}\\") & set(value):  # the value needs more than quotes
        return f"'{key}=\"TEXT\"'"
    quoted_items = ",".join(f'"{item.strip()}"' for item in value.strip("[]").split(","))
    return f"'{key}=[{quoted_items}]'" if value.startswith("[") else f"'{key}={quoted_items}'"


# Errors of Hydra and OmegaConf in one sentence.

# the error about an experiment whose keys Hydra has put below "experiment"
NO_PACKAGE = "the file of an experiment must begin with the line # @package _global_"
_COMMUNICATION = ("topology", "uplink", "downlink", "clock")
_UNNAMED = re.compile(r"Interpolation key '(\w+)\.name' not found")
_INPUT_ERRORS = (UserError, HydraException, OmegaConfBaseException, YAMLError)


def describe_hydra_error(error: BaseException) -> str:
    """Return one sentence for an error of Hydra or OmegaConf, with the nearest valid name."""
    user_error = _find_cause(error, UserError)
    if user_error is not None:
        return str(user_error)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group:
            return f"there is no {group}={name}: {suggest_name(name, error.options or [])}"
        return str(error).splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Ambiguous value" in str(error):
        return f"{lines[0]}; several values are a sweep, fcorun -m"
    if isinstance(error, OverrideParseException):
        return _describe_parse_error(error, lines[0])
    if isinstance(error, MarkedYAMLError):
        return describe_yaml_error(error)
    if match := _UNNAMED.search(str(error)):
        return f"the file of {match[1]} has no name: give it the line name: NAME"
    if key := find_unknown_key(error):
        return _describe_unknown_key(error, key)
    return lines[0] + (f" ({lines[1]})" if len(lines) > 1 else "")


def _choices_with_key(group: str, key: str) -> list[str]:
    """Return the choices of a group that have a key."""
    return [name for name in find_choices(group) if key in read_choice(group, name).keys]


def _describe_parse_error(error: OverrideParseException, first_line: str) -> str:
    if "LexerNoViableAlt" in str(error):
        return f"{error.override}: letters such as these need quotes within quotes: {quote_for_shell(error.override)}"
    key, _, value = str(error.override).partition("=")
    if value.startswith("{") and "=" in value.replace("\\=", ""):  # a name with "=", such as a column with its level
        escaped = re.sub(r"(?<!\\)=", r"\\=", value)
        return f"{error.override}: within braces a = of a name is written \\=: '{key}={escaped}'"
    return f"{error.override}: {first_line}"


def _describe_unknown_key(error: BaseException, key: str) -> str:
    if "@experiment." in key:  # Hydra's place for the defaults of a file without the line @package _global_
        return NO_PACKAGE
    parent = getattr(_find_cause(error, OmegaConfBaseException), "parent_node", None)
    if parent is None or not hasattr(parent, "keys"):
        return f"unknown option '{key}'; fcorun --cfg job shows every key"
    if key == "out":
        return "out=DIR is of the commands: in Python, give the folder to run() or sweep(); fcorun plan has --out FILE"
    section, current = key.partition(".")[0], parent.get("name")
    owners = _choices_with_key(section, key) if section in _COMMUNICATION else []
    if owners:
        of_others = f"{key} is of {section}={' or '.join(owners)}"
        is_default = current in ("star", "identity", "none")
        return f"{of_others}: give that too" if is_default else f"{of_others}, not of {section}={current}: leave it out"
    if key == "data.labels" and parent.get("name") == "sites":
        return "data.labels is of data=table: a plan has no labels; give roles by data.target, data.group and the like"
    prefix, _, last_part = key.rpartition(".")
    valid = {str(name) for name in parent if name != "hydra"} | set(_class_fields(parent))
    section = f" in {prefix}" if prefix else ""
    return f"unknown option '{key}': {suggest_name(last_part, valid)}{section}"


def find_unknown_key(error: BaseException) -> str | None:
    """Return the key that the configuration does not have, if that is the error; else None."""
    match = re.search(r"Could not override '([^']+)'", str(error))
    return match[1] if match else None


def find_key_of_class(error: BaseException) -> str | None:
    """Return the unknown key of an error if a section's class has it as a field, while the section's file does not."""
    key = find_unknown_key(error)
    parent = getattr(_find_cause(error, OmegaConfBaseException), "parent_node", None)
    section, _, field = (key or "").rpartition(".")
    return key if section in SECTIONS and field in _class_fields(parent) else None


def _class_fields(section: Any) -> list[str]:
    """Return the fields of the class that a composed section names; none if the class cannot be loaded."""
    try:
        return [field.name for field in fields(locate_user_class(section["class"], "class")) if field.init]
    except (UserError, OmegaConfBaseException, KeyError, TypeError):
        return []


def is_user_error(error: BaseException) -> bool:
    """Return whether an error is caused by bad input."""
    return _find_cause(error, _INPUT_ERRORS) is not None


def _find_cause(error: BaseException | None, kind: type | tuple[type, ...]) -> Any:
    """Return the first error of a kind in a chain of causes; None if the chain has none."""
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or (error.__context__ if _is_of_hydra(error) else None)
    return None


def _is_of_hydra(error: BaseException) -> bool:
    """Return whether Hydra or OmegaConf raised an error, which may hide the one that it handled."""
    return type(error).__module__.partition(".")[0] in ("hydra", "omegaconf")


# Hydra 1.3 needs version_base and does not know execution_whitelist; Hydra 1.4 is the other way round. fcorun never
# executes anything by name through Hydra, so its whitelist is empty.
HYDRA_1_3 = hydra.__version__.startswith("1.3")


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> dict[str, Any]:
    """Return the configuration that ``fcorun --config-dir CONFIG_DIR OVERRIDES`` would run, as plain values.

    >>> compose(["algo=fedmid", "rounds=20"])["algo"]["name"]
    'fedmid'

    Raises UserError with the sentence that the command would print.
    """
    check_overrides(overrides)
    with use_config_dir(config_dir) if config_dir is not None else nullcontext():
        try:
            return to_plain_values(compose_config(overrides, with_hydra=False))
        except OmegaConfBaseException as error:
            raise UserError(describe_hydra_error(error)) from error


def compose_config(overrides: Sequence[str], with_hydra: bool = True) -> DictConfig:
    """Return the configuration that Hydra composes, with or without Hydra's own section.

    Raises UserError with the sentence that the command would print.
    """
    try:
        with initialize_hydra():
            return compose_with_defaults(
                normalize_overrides(overrides),
                lambda current: hydra.compose("config", current, return_hydra_config=with_hydra),
            )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(describe_hydra_error(error)) from error


def initialize_hydra() -> AbstractContextManager[None]:
    """Return a context in which Hydra composes fcorun's configuration files."""
    version: Any = {"version_base": "1.3"} if HYDRA_1_3 else {}
    return hydra.initialize_config_dir(packaged_config_dir(), job_name="main", **version)


def compose_with_defaults(overrides: Sequence[str], compose: Callable[[list[str]], Any]) -> Any:
    """Return ``compose(overrides)``, with keys added that a section's class has but its file does not.

    Raises what Hydra raises.
    """
    current = list(overrides)
    while True:
        try:
            return compose(current)
        except Exception as error:
            key = find_key_of_class(error)
            if key is None or f"++{key}" in (text.partition("=")[0] for text in current):
                raise
            current = [f"++{text}" if text.partition("=")[0] == key else text for text in current]


def to_plain_values(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, with interpolations resolved, and import its classes.

    Raises UserError.
    """
    if "experiment" in config:  # Hydra's place for the keys of a file without the line @package _global_
        raise UserError(NO_PACKAGE)
    values: dict[str, Any] = {}
    try:
        for key in (str(key) for key in config if key != "hydra"):
            value = "???" if OmegaConf.is_missing(config, key) else config[key]
            values[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (InterpolationKeyError, InterpolationResolutionError) as error:
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        import_classes({"data": data})
        build_plugin("data", data)  # an error in data.task explains the failed interpolation better
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}; set {error.full_key} itself") from error
    if user_config_dir() is not None:
        check_names(values)
    import_classes(values)  # a composed configuration is the user's own
    return values | resolve_settings(values)


def check_names(values: Mapping[str, Any]) -> None:
    """Raise UserError for a section that has the name of a choice, but another class than that choice's file.

    Records, tables and pictures call a section by its name.
    """
    for section in SECTIONS:
        given = values.get(section)
        if not isinstance(given, Mapping) or given.get("class") in (None, "???"):
            continue
        path = find_choices(section).get(str(given.get("name")))
        named = read_yaml(path).get("class") if path else None
        if named is not None and "$" not in named and named != given["class"]:
            raise UserError(
                f"{section}.name={given['name']} is the name of {named}, and not of {given['class']}: give another name"
            )


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the root keys that are "auto": those of ``data.natural``, else the defaults of ``Settings``."""
    data = values.get("data")
    natural = (data.get("natural") or {}) if isinstance(data, Mapping) else {}
    return {
        field.name: natural.get(field.name, field.default)
        for field in fields(Settings)
        if values.get(field.name) == AUTO
    }


def sweep_name(*, _root_: DictConfig) -> str:
    """Return the folder of a sweep below outputs: beside its figure, or else named after its overrides."""
    if _root_.get("figure"):
        return f"figures/{_root_.figure.get('runs') or _root_.hydra.runtime.choices.experiment}/runs"
    data = str(_root_.hydra.runtime.choices.data)
    overrides = list(_root_.hydra.overrides.task)
    is_given = any(override_key(text) == "data" for text in overrides)
    if not is_given and "data" in (_root_.hydra.sweeper.get("params") or {}):
        data = "several"
    return "sweeps/" + make_sweep_name(data, overrides)


def make_sweep_name(data: str, task_overrides: list[str]) -> str:
    """Return a name for a sweep: its data, and a digest of its axes' keys and its fixed overrides.

    The name stays the same when values are added to an axis. In place of the choice ``data`` it has "several" if the
    data are an axis.
    """
    fixed, axes = [], []
    for override in OverridesParser.create().parse_overrides(list(task_overrides)):
        key = override.get_key_element()
        if key.partition(".")[0] in {"tracker", *keys_outside_identity()}:
            continue
        if override.is_sweep_override():
            axes.append(key)
        else:
            fixed.append(f"{key}={override.value()}")
    if "data" in axes:
        data = "several"
    return f"{data}-{hashlib.sha256(repr((sorted(fixed), sorted(axes))).encode()).hexdigest()[:8]}"


class PreparedOnce:
    """A function that prepares the experiment of plain values.

    It keeps the result for the next call with the same values: Hydra asks for the identity of a run, to name its
    folder, before it starts the run.

    Args:
        prepare: makes the experiment of plain values. Raises UserError.
    """

    def __init__(self, prepare: "Callable[[dict[str, Any]], PreparedExperiment]"):
        self.prepare = prepare
        self.values: dict[str, Any] = {}
        self.experiment: PreparedExperiment | None = None

    def __call__(self, values: dict[str, Any]) -> "PreparedExperiment":
        """Prepare the experiment of some values, unless they are those of the last call. Raises UserError."""
        if self.experiment is None or values != self.values:
            self.values, self.experiment = values, self.prepare(values)
        return self.experiment


def register_resolvers(prepare_once: PreparedOnce) -> None:
    """Register the resolvers ${run_id:} and ${sweep_name:} with OmegaConf."""

    def run_id(*, _root_: DictConfig) -> str:
        """Return eight digits of the identity of a configuration's run, which a point of a sweep knows already."""
        return _root_.hydra.get("run_id") or prepare_once(to_plain_values(_root_)).identity[:8]

    register: Any = OmegaConf.register_new_resolver if HYDRA_1_3 else OmegaConf.register_resolver
    register("run_id", run_id, replace=True)
    register("sweep_name", sweep_name, replace=True)
