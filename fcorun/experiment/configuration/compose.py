"""Composition of configuration files and overrides by Hydra: plain values, and errors."""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from fcorun.base.config import (
    AUTO,
    GRID_SECTIONS,
    NOTE_ADVICE,
    NOTE_KEYS,
    SECTIONS,
    Settings,
    build_plugin,
    changes_runs,
    import_classes,
)
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.override_text import NOT_READ_AS_TEXT, quote_for_shell, quote_text, read_names
from fcorun.base.records.formats import describe_yaml_error
from fcorun.base.trust import locate_user_class, public_path
from fcorun.experiment.configuration.key_docs import read_choice
from fcorun.experiment.configuration.search_path import (
    OWN_VALUES,
    find_choices,
    packaged_config_dir,
    read_yaml,
    use_config_dir,
)

if TYPE_CHECKING:
    from fcorun.experiment.experiment import PreparedExperiment


# Overrides, KEY=VALUE, before Hydra composes them.

_OF_JSON = "${oc.create:"  # the begin of a mapping that OmegaConf makes of JSON
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
    is_quoted = re.fullmatch(r"'.*'|\".*\"", folder, re.DOTALL) is not None
    if NOT_READ_AS_TEXT.fullmatch(folder) or (set("=,{}()[]'\"") & set(folder) and not is_quoted):
        folder = quote_text(folder, "'")  # Hydra would read 2026_05 as 202605, and refuse a=b
    return [*others, f"{key}={folder}"]


def normalize_overrides(arguments: Sequence[str]) -> list[str]:
    r"""Return the arguments of the command line in the form that Hydra takes.

    -m is moved to the front and other options to the end, since Hydra takes overrides in one piece only, and
    ``+experiment=NAME`` becomes ``experiment=NAME``. Two kinds of values are put into quotes: an IPv6 address, which
    Hydra would read as a list, and a network path of Windows (``\\server\share``), of whose two leading backslashes
    Hydra would drop one.

    Raises UserError for a value of a group that is no name, for a strength that is given twice, for a list of files as
    ``data.path``, for a number that Python does not read, and for Hydra's option that runs the content of a pickle.
    """
    given_keys = {override_key(text) for text in arguments if not text.endswith("=null")}
    if {"reg.strength", "reg.relative"} <= given_keys:
        raise UserError("`reg.relative` sets the strength: give `reg.relative` or `reg.strength`, not both")
    for argument in arguments:
        if argument.startswith("--experimental-rerun"):
            raise UserError("--experimental-rerun reads a pickle, which may hold any program: give the keys again")
        if re.search(r"[\d_]{4300}", argument):
            raise UserError(f"{argument[:40]}...: a number of {len(argument)} letters is too long: give fewer digits")
        if re.fullmatch(r"\+{0,2}data\.path=\[.*\]", argument, re.DOTALL):
            raise UserError(f"{argument}: `data.path` is one file: join the tables into one, with a column that names "
                            "each row's client (`data.client`); rows that stay apart need fcorun plan")  # fmt: skip
        if match := _GROUP_OVERRIDE.fullmatch(argument):
            _check_group(match[1], match[2], argument)
    normalized = []
    for argument in sorted(arguments, key=_place_in_command):
        argument = re.sub(r"^([\w.+]+)=(\\\\[^\"',]*[^\"',\\])$", r'\1="\2"', argument)
        normalized.append(translate_names(re.sub(r"^\+{1,2}(?=experiment=)", "", argument)))
    return normalized


def translate_names(override: str) -> str:
    """Return an override whose value is a mapping with names that Hydra does not read, as OmegaConf makes it of JSON.

    Other overrides are returned as they are.
    """
    key, _, value = override.partition("=")
    mapping = read_mapping(value)
    if not mapping:
        return override
    content = quote_text(json.dumps(mapping, ensure_ascii=False), "'")
    return f"{key}=" + quote_text(_OF_JSON + content + "}", '"')


def read_mapping(value: str) -> dict[str, Any]:
    """Return a mapping with names that Hydra does not read; {} for others, and for values that Hydra does not read."""
    parse = OverridesParser.create().parse_override
    try:
        return {name: parse(f"value={text}").value() for name, text in read_names(value).items()}
    except HydraException:
        return {}


def _place_in_command(argument: str) -> int:
    """Return the place of an argument among those that Hydra takes: -m, overrides, and then options and the rest."""
    if argument in ("-m", "--multirun"):
        return 0
    is_override = not argument.startswith("-") and ("=" in argument or argument.startswith("~"))
    return 1 if is_override else 2


def _check_group(group: str, text: str, argument: str) -> None:
    """Raise UserError if an override of a group has a value that is no name of a choice, or its file is no YAML."""
    try:
        override = OverridesParser.create().parse_override(argument)
        values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    except HydraException:  # composing reports the error; a pattern, glob(...), matches names only
        return
    for value in values:
        if isinstance(value, str) or (value is None and group == "experiment"):
            if path := find_choices(group).get(value or ""):
                read_yaml(path)  # Hydra does not name a file that is not in UTF-8
            continue
        advice = ""
        if isinstance(value, list):
            advice = f"; several are a sweep, fcorun -m {group}={text.strip('[]')}"
        elif isinstance(value, (int, float)):
            advice = f"; numbers go to its keys, which fcorun help {group} lists"
        choices = find_choices(group)
        suggestion = suggest_name("none" if value is None and "none" in choices else "", choices)
        raise UserError(f"{group}={text} must be the name of one choice: {suggestion}{advice}")


# The composition.

_VARIABLE = re.compile(r"\$\{oc\.env:[^{}]*\}")

# Hydra 1.3 needs version_base and does not know execution_whitelist; Hydra 1.4 is the other way round. fcorun never
# executes anything by name through Hydra, so its whitelist is empty.
HYDRA_1_3 = hydra.__version__.startswith("1.3")


def compose(overrides: Sequence[str] = (), config_dir: str | Path | None = None) -> dict[str, Any]:
    """Return the configuration that ``fcorun --config-dir CONFIG_DIR OVERRIDES`` would run, as plain values.

    >>> compose(["algo=fedmid", "rounds=20"])["algo"]["name"]
    'fedmid'

    Raises UserError with the sentence that the command would print, also for an experiment that is a sweep.
    """
    check_overrides(overrides)
    with use_config_dir(config_dir) if config_dir is not None else nullcontext():
        config = compose_config(overrides)
        refuse_sweep(config, config.hydra)
        return _read_values(config)


def compose_shared(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that the runs of an experiment share, also of a sweep. Raises UserError."""
    return _read_values(compose_config(overrides, with_hydra=False))


def _read_values(config: DictConfig) -> dict[str, Any]:
    """Return plain values, as ``to_plain_values``. Raises UserError for all that is wrong."""
    try:
        return to_plain_values(config)
    except OmegaConfBaseException as error:
        raise UserError(describe_hydra_error(error)) from error


def refuse_sweep(config: DictConfig, hydra: Any) -> None:
    """Raise UserError if an experiment has axes, and a single run gives no value for them.

    An axis of which the run's choice has no field, such as algo.client_lr with algo=centralized, needs no value. If all
    runs are lines of ``also``, the axes are the keys with which the lines begin. ``hydra`` is Hydra's own section of
    the configuration.
    """
    overrides: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # a variable may be missing
    given_keys = set(map(override_key, overrides))
    keys = hydra.sweeper.get("params") or dict.fromkeys(map(override_key, hydra.sweeper.get("also") or ()))
    axes = [key for key in keys if key not in given_keys and _has_key(config, key)]
    if not axes:
        return
    experiment = hydra.runtime.choices.get("experiment")
    source = f"experiment={experiment}" if experiment else "hydra.sweeper"
    picture_advice = f", `fcorun figure {experiment}` with its picture" if config.get("figure") else ""
    raise UserError(f"{source} is a sweep: give one value of {', '.join(axes)} for one run; `fcorun -m` runs "
                    f"all{picture_advice}")  # fmt: skip


def _has_key(config: DictConfig, key: str) -> bool:
    """Return whether a composed configuration has the key of an axis, as a field of a choice."""
    section, _, name = key.partition(".")
    return not name or section not in GRID_SECTIONS or name.partition(".")[0] in _class_fields(config[section])


def compose_config(overrides: Sequence[str], with_hydra: bool = True) -> DictConfig:
    """Return the configuration that Hydra composes, with or without Hydra's own section.

    Raises UserError with the sentence that the command would print.
    """
    try:
        version: Any = {"version_base": "1.3"} if HYDRA_1_3 else {}
        with hydra.initialize_config_dir(packaged_config_dir(), job_name="main", **version):
            return compose_with_defaults(
                normalize_overrides(overrides),
                lambda current: hydra.compose("config", current, return_hydra_config=with_hydra),
            )
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise UserError(describe_hydra_error(error)) from error


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
        _read_numbers_of_environment(values, OmegaConf.to_container(config, resolve=False))
    except (InterpolationKeyError, InterpolationResolutionError) as error:
        if match := _NO_VARIABLE.search(str(error)):
            name = match[1]
            raise UserError(f"{error.full_key}: the environment has no variable {name}: export {name}=VALUE, or give "
                            f"{error.full_key}=VALUE") from error  # fmt: skip
        data: Any = OmegaConf.to_container(config.data, resolve=True)
        import_classes({"data": data})
        build_plugin("data", data)  # an error in data.task explains the failed interpolation better
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}; set {error.full_key} itself") from error
    for section in SECTIONS:
        if isinstance(values.get(section), dict) and isinstance(values[section].get("class"), str):
            values[section]["class"] = public_path(values[section]["class"])
    import_classes(values)  # a composed configuration is the user's own
    return values | resolve_settings(values)


def _read_numbers_of_environment(values: dict[str, Any], written: Any) -> None:
    """Replace texts that are a variable of the environment, ``${oc.env:NAME}``, by the value that an override has."""
    for key, value in values.items():
        if isinstance(value, dict):
            if isinstance(written[key], dict):  # else it is a reference to another mapping, which has its own turn
                _read_numbers_of_environment(value, written[key])
        elif isinstance(value, str) and _VARIABLE.fullmatch(str(written[key])) and NOT_READ_AS_TEXT.fullmatch(value):
            values[key] = OverridesParser.create().parse_override(f"{key}={value}").value()


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for the root keys that are "auto".

    They are those of ``algo.natural``, else of ``data.natural``, else the defaults of ``Settings``.
    """
    natural: dict[str, Any] = {}
    for section in ("data", "algo"):
        plugin = values.get(section)
        advised = (plugin.get("natural") or {}) if isinstance(plugin, Mapping) else {}
        if not isinstance(advised, Mapping):
            raise UserError(f"`{section}.natural={advised}` must be a mapping: give {{KEY: VALUE}}, or leave it out")
        natural |= advised
    return {
        field.name: natural.get(field.name, field.default)
        for field in fields(Settings)
        if values.get(field.name) == AUTO
    }


def sweep_name(*, _root_: DictConfig) -> str:
    """Return the folder of a sweep below outputs: beside its figure, or else named after its overrides."""
    if _root_.get("figure"):
        if not OmegaConf.is_dict(_root_.figure):
            raise UserError(f"figure={_root_.figure} must be a mapping: give experiment=NAME of a figure's file")
        return f"figures/{_root_.figure.get('runs') or _root_.hydra.runtime.choices.experiment}/runs"
    data = str(_root_.hydra.runtime.choices.data)
    given: Any = _root_.hydra.overrides.task
    as_typed: Any = OmegaConf.to_container(given, resolve=False)
    overrides = [text if _OF_JSON in text else given[i] for i, text in enumerate(as_typed)]
    is_given = any(override_key(text) == "data" for text in overrides)
    if not is_given and "data" in (_root_.hydra.sweeper.get("params") or {}):
        data = "several"
    return "sweeps/" + make_sweep_name(data, overrides)


def make_sweep_name(data: str, task_overrides: list[str]) -> str:
    """Return the name of a sweep, see ``name_sweep``, by the overrides of the command line."""
    fixed, axes = [], []
    for override in OverridesParser.create().parse_overrides(list(task_overrides)):
        key = override.get_key_element()
        if not changes_runs(key):
            continue
        if override.is_sweep_override():
            axes.append(key)
        else:
            fixed.append(f"{key}={override.value()}")
    return name_sweep(data, fixed, axes)


def name_sweep(data: str, fixed: Iterable[str], axes: Collection[str]) -> str:
    """Return a name for a sweep: its data, and a digest of its ``fixed`` settings KEY=VALUE and the keys of its axes.

    The name stays the same when values are added to an axis. In place of the choice ``data`` it has "several" if the
    data are an axis.
    """
    if "data" in axes:
        data = "several"
    return f"{data}-{hashlib.sha256(repr((sorted(fixed), sorted(axes))).encode()).hexdigest()[:8]}"


Prepare = Callable[[dict[str, Any]], "PreparedExperiment"]  # makes the experiment of plain values


def remember_last(prepare: Prepare) -> Prepare:
    """Return a function that prepares the experiment of plain values, and keeps it for a call with the same values.

    Hydra asks for the identity of a run, to name its folder, before it starts the run.
    """
    last: list[Any] = []

    def prepare_once(values: dict[str, Any]) -> "PreparedExperiment":
        if not last or last[0] != values:
            last[:] = [values, prepare(values)]
        return last[1]

    return prepare_once


def register_resolvers(prepare_once: Prepare) -> None:
    """Register the resolvers ${run_id:} and ${sweep_name:} with OmegaConf."""

    def run_id(*, _root_: DictConfig) -> str:
        """Return eight digits of the identity of a configuration's run, which a point of a sweep knows already."""
        return _root_.hydra.get("run_id") or prepare_once(to_plain_values(_root_)).identity[:8]

    register: Any = OmegaConf.register_new_resolver if HYDRA_1_3 else OmegaConf.register_resolver
    register("run_id", run_id, replace=True)
    register("sweep_name", sweep_name, replace=True)


# Errors of Hydra and OmegaConf in one sentence.


# the error about an experiment whose keys Hydra has put below "experiment"
NO_PACKAGE = "the file of an experiment must begin with the line # @package _global_"
_COMMUNICATION = ("topology", "uplink", "downlink", "aggregate", "clock", "faults", "privacy")
_NO_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")
_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.*?)=(.*)'")
_UNNAMED = re.compile(r"Interpolation key '(\w+)\.name' not found")
_RAISED = re.compile(r"^\w+ raised while resolving interpolation: ")
_NOT_MERGED = re.compile(r"^In '(.*)': ConfigTypeError raised while composing config:")
_INPUT_ERRORS = (UserError, HydraException, OmegaConfBaseException, YAMLError)


def describe_hydra_error(error: BaseException) -> str:
    """Return one sentence for an error of Hydra or OmegaConf, with the nearest valid name."""
    user_error = _find_cause(error, UserError)
    if user_error is not None:
        return str(user_error)
    if isinstance(error, MissingConfigException):
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if group:
            sentence = f"there is no {group}={name}: {suggest_name(name, error.options or [])}"
            if group == "hydra/launcher" and name.startswith(("dask", "joblib", "submitit")):
                sentence += f"; give hydra.launcher.executor={'submitit' if name.startswith('submitit') else 'dask'}"
            return sentence
        return str(error).splitlines()[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := _AMBIGUOUS.search(str(error)):
        items = match[2].split(",")
        may_be_text = match[1] not in SECTIONS and not any(map(NOT_READ_AS_TEXT.fullmatch, items))
        advised = _advise_quotes(f"{match[1]}={match[2]}") if may_be_text else ""
        text_advice = f", and one text with commas is {advised}" if advised else ""
        return f"{lines[0]}; several values are a sweep, fcorun -m{text_advice}"
    if isinstance(error, OverrideParseException):
        if advised := _advise_quotes(str(error.override)):
            return f"{error.override}: letters such as these need quotes within quotes: {advised}"
        if lines[0].startswith("LexerNoViableAltException"):
            return f"{error.override}: this is not KEY=VALUE, or a value with such letters needs quotes"
        return f"{error.override}: {lines[0]}"
    if isinstance(error, MarkedYAMLError):
        return describe_yaml_error(error)
    if match := _UNNAMED.search(str(error)):
        return f"the file of {match[1]} has no name: give it the line name: NAME"
    if key := find_unknown_key(error):
        return _describe_unknown_key(error, key)
    sentence = _RAISED.sub("a reference, ${...}, cannot be resolved: ", lines[0])
    if match := _NOT_MERGED.search(sentence):
        file = "config.yaml" if match[1] == OWN_VALUES else f"{match[1]}.yaml"
        return f"{file} has a list where fcorun has a mapping of keys: write KEY: VALUE, as fcorun --cfg job shows it"
    return sentence + (f" ({lines[1]})" if len(lines) > 1 else "")


def _advise_quotes(override: str) -> str:
    """Return an override that Hydra cannot read as it is typed with quotes, "" if they do not help.

    They do not help a list or a mapping without its end.
    """
    if not re.fullmatch(r"[\w.@/+~-]+=(\[.*\]|\{.*\}|[^\[{].*)", override, re.DOTALL):
        return ""
    try:
        advised = quote_for_shell(override)
        OverridesParser.create().parse_override(translate_names(shlex.split(advised)[0]))
    except HydraException:
        return ""
    return advised


def _describe_unknown_key(error: BaseException, key: str) -> str:
    if "@experiment." in key:  # Hydra's place for the defaults of a file without the line @package _global_
        return NO_PACKAGE
    parent = getattr(_find_cause(error, OmegaConfBaseException), "parent_node", None)
    if parent is None or not hasattr(parent, "keys"):
        return f"unknown option '{key}'; fcorun --cfg job shows every key"
    if key == "out":
        return "out=DIR is of the commands: in Python, give the folder to run() or sweep(); fcorun plan has --out FILE"
    if key in ("hosts.address", "hosts.rank", "hosts.secret_file"):
        return f"{key} is no more: one command starts all hosts: give hosts.count, and hydra.launcher.dask or address"
    section, current = key.partition(".")[0], parent.get("name")
    if section in _COMMUNICATION:
        owners = [name for name in find_choices(section) if key in read_choice(section, name).keys]
        sentence = f"{key} is of {section}={' or '.join(owners)}"
        if owners and current in ("star", "identity", "mean", "none"):
            return f"{sentence}: give that too"
        if owners:
            return f"{sentence}, not of {section}={current}: leave it out"
    if key == "data.labels" and parent.get("name") == "sites":
        return "data.labels is of data=table: a plan has no labels; give roles by data.target, data.group and the like"
    if key in NOTE_KEYS:
        return f"unknown option '{key}': {NOTE_ADVICE}"
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
        cause = error.__cause__
        if cause is None and type(error).__module__.partition(".")[0] in ("hydra", "omegaconf"):
            cause = error.__context__  # Hydra and OmegaConf may hide the error that they handled
        error = cause
    return None
