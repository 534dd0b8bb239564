"""Generate the pages of docs/reference from configuration files, docstrings and the command, at each build.

The pages are not committed. The generator reads the sources of ``fcorun help`` and ``fcorun list``.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from inspect import getsourcefile
from pathlib import Path
from unittest.mock import patch

import yaml
from markup import documented, joined, listing, marked, short, table, tree

from fcorun.base.config import SECTIONS
from fcorun.base.sources.catalogue import UNPUBLISHED, Source, load_catalogue, read_source
from fcorun.experiment.configuration.key_docs import (
    GROUPS,
    KeyDoc,
    format_default,
    plugin_class,
    read_choice,
    read_default_choices,
    read_root_keys,
)
from fcorun.experiment.configuration.objects import find_expression
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.cli.commands import COMMANDS
from fcorun.interface.cli.commands.list_command import LEGENDS, capabilities
from fcorun.studies.figures import spec

TITLES = {
    "algo": "Algorithms",
    "reg": "Regularizers",
    "data": "Data sets",
    "objective": "Objectives",
    "mirror": "Mirror maps",
    "topology": "Topologies",
    "uplink": "Channels of uploads",
    "downlink": "Channels of broadcasts",
    "aggregate": "Aggregation rules",
    "clock": "Clocks",
    "faults": "Faults",
    "privacy": "Privacy",
    "tracker": "Trackers",
    "hydra/launcher": "Launcher",
    "hydra/sweeper": "Sweepers",
}
_choice_of, _root_keys = cache(read_choice), cache(read_root_keys)
DOCS = Path(__file__).parent
PAGED = ("algo",)  # groups with a page for each choice
CONTRACTS = (  # modules of fcorun
    "methods.algorithms.algorithm",
    "methods.regularizers.regularizer",
    "methods.mirror_maps.mirror_map",
    "methods.objectives.objective",
    "data.datasets.dataset",
    "data.tasks.task",
    "methods.communication.contracts",
    "methods.communication.aggregation",
    "methods.clocks.clock",
    "methods.communication.faults",
    "methods.communication.privacy",
    "experiment.tracker",
)
PUBLIC = (
    *("Experiment", "from_arrays", "from_frame", "Record", "Sweep", "load_records", "figure"),
    *("compose", "run", "Watcher", "UserError", "ExperimentWarning"),
)


def write(docs: Path) -> None:
    """Write the pages into ``docs``/reference; leave unchanged pages untouched, and delete other files."""
    folder = docs / "reference"
    texts = dict(pages())
    for path in folder.rglob("*.md") if folder.is_dir() else ():
        if str(path.relative_to(folder)) not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path in docs/reference and the text of each page."""
    groups = [group for group in GROUPS if group in TITLES]
    yield "index.md", _index(groups)
    for group in groups:
        yield f"{_page(group)}.md", _group(group)
        for name in find_choices(group) if group in PAGED else ():
            yield _place(group, name), joined(_choice(group, name, "#"))
    yield "keys.md", _keys()
    yield "commands.md", _commands()
    yield "gallery.md", _gallery()
    yield "python.md", _python()
    yield "contracts.md", _contracts()
    yield "sources.md", _sources()
    yield "contributing.md", _repository_page("CONTRIBUTING.md")
    yield "changelog.md", _repository_page("CHANGELOG.md")


def _page(group: str) -> str:
    return group.rpartition("/")[2]


def _index(groups: list[str]) -> str:
    more = {"keys": "Keys", "commands": "Commands", "gallery": "Gallery of figures", "python": "From Python",
            "contracts": "Contracts of plug-ins", "sources": "Sources, as BibTeX"}  # fmt: skip
    lines = ["# Reference", "", "Generated from the configuration files, the docstrings and the command itself.", ""]
    lines += [f"- [{TITLES[group]}]({_page(group)}.md): `{group}=`" for group in groups]
    lines += [f"- [{title}]({name}.md)" for name, title in more.items()]
    return joined(lines, "", tree([*map(_page, groups), *(name for name in more if name != "gallery")]))


def _group(group: str) -> str:
    """Return the page of a group: a table of its choices, then the choices or links to their pages."""
    choices = {name: _choice_of(group, name) for name in find_choices(group)}
    rows = [
        (f"[{name}]({_place(group, name)})", marked(each.description), marked(", ".join(capabilities(group, each))))
        for name, each in choices.items()
    ]
    default = read_default_choices().get(group)
    default_note = f"The default is `{group}={default}`. " if default in choices else ""
    legend = f"{marked(LEGENDS[group]).capitalize()}." if group in LEGENDS else ""
    lines = [f"# {TITLES[group]}", ""]
    lines += [
        f"`fcorun list {group}` lists the choices, `fcorun help {group}=NAME` explains one. {default_note}{legend}",
        "",
    ]
    lines += table((group, "description", "requirements and capabilities"), rows)
    if general := [
        (f"`{key}`", *_describe_key(about)) for key, about in _root_keys().items() if key.startswith(f"{group}.")
    ]:
        lines += ["Keys of all choices:", "", *table(("key", "default", "meaning"), general)]
    if group in PAGED:
        lines += ["## Notation", "", (DOCS / "equations" / "notation.md").read_text(encoding="utf-8")]
        return joined(lines, tree([f"{group}-{name}" for name in choices]))
    return joined(lines, *(_choice(group, name, "##") for name in choices))


def _choice(group: str, name: str, level: str) -> list[str]:
    """Return the section of a choice: description, keys, mathematics, class documentation, and code."""
    choice = _choice_of(group, name)
    path = find_choices(group)[name]
    lines = [f"{level} {group}={name}", "", marked(choice.description), ""]
    if able := capabilities(group, choice):
        lines += [f"Requirements and capabilities: {marked(', '.join(able))}.", ""]
    kind = plugin_class(group, choice)
    source = read_source(kind) if kind else None
    if source and source.text:
        links = " ".join(f"[\\[{entry.key}\\]](sources.md#{entry.key})" for entry in source.entries)
        lines += [f"Source: {marked(source.text)}. {links}", ""]
    if group in SECTIONS and (expression := find_expression(group, name)):
        lines += [f"From Python: `fcorun.{expression}`.", ""]
    keys = [(f"`{key}`", *_describe_key(about)) for key, about in choice.keys.items()]
    lines += table(("key", "default", "meaning"), keys)
    if kind and (equations := DOCS / "equations" / f"{kind.__name__}.md").is_file():
        lines += [f"{level}# The mathematics", "", "[Notation](algo.md#notation).", ""]
        lines += [equations.read_text(encoding="utf-8"), ""]
    if kind and (file := getsourcefile(kind)):
        lines += documented("autoclass", f"{kind.__module__}.{kind.__qualname__}", ":no-index:")
        lines += [f"`{short(Path(file))}`:", "", *listing(file, "python")]
    return [*lines, f"`{short(path)}`:", "", *listing(path, "yaml")]


def _place(group: str, name: str) -> str:
    """Return the link to a choice from the other pages."""
    return f"{group}-{name}.md" if group in PAGED else f"{_page(group)}.md#{_anchor(group, name)}"


def _describe_key(about: KeyDoc) -> tuple[str, str]:
    """Return a key's default and meaning."""
    default = format_default(about.value)
    shown = marked(default) if default != about.value or not default else f"`{default}`"
    kind = f" ({marked(about.type_text)})" if about.type_text else ""
    return shown.replace("|", "\\|") if shown.startswith("`") else shown, marked(about.comment) + kind


def _anchor(group: str, name: str) -> str:
    return f"{group}-{name}".replace("/", "-").replace("_", "-")


def _keys() -> str:
    rows = [(f"`{key}`", *_describe_key(about)) for key, about in _root_keys().items() if about.value]
    lines = ["# Keys of every run", "", "`fcorun KEY=VALUE ...`; `fcorun help KEY` explains one, `fcorun --cfg job` "
             "prints all with their values.", "", *table(("key", "default", "meaning"), rows)]  # fmt: skip
    for name, kind in (("figure", spec.Figure), ("figure.claims", spec.Claim)):
        lines += [
            f"## The section {name}",
            "",
            "```{eval-rst}",
            f".. autoclass:: {kind.__module__}.{kind.__qualname__}",
        ]
        lines += ["   :no-index:", "```", ""]
    return joined(lines)


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "`fcorun KEY=VALUE ...` makes a run, `fcorun -m KEY=VALUE,VALUE ...` a sweep. Other commands:",
        "",
    ]
    for name in COMMANDS:
        command = import_module(f"fcorun.interface.cli.commands.{name}_command")
        shown = _printed(lambda command=command: command.run(["--help"]))
        lines += [f"## fcorun {name}", "", "```text", shown.rstrip(), "```", ""]
    return joined(lines)


def _printed(call: Callable[[], object]) -> str:
    """Return the output of a call on a terminal of 100 columns without colours."""
    with (
        patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.suppress(SystemExit),
    ):
        call()
    return out.getvalue()


def _gallery() -> str:
    lines = [
        "# Gallery of figures",
        "",
        "Each figure is a file in `conf/experiment`. `fcorun figure NAME` makes the figure and tests its claims.",
    ]
    lines += ["[Figures](../guide/figures.md) documents the command, with times and verdicts.", ""]
    for name, path in spec.list_figures().items():
        figure = yaml.safe_load(path.read_text(encoding="utf-8"))["figure"]
        title, head = marked(figure["title"]), marked(_choice_of("experiment", name).description)
        lines += [f"## {name}", "", f"**{title}**", "", head, ""]
        if (DOCS / f"{name}.png").is_file():
            lines += [f"![{title}](../{name}.png)", ""]
        lines += ["```text", f"fcorun figure {name}", "```", ""]
        if runs := figure.get("runs"):
            lines += [f"The figure uses the runs of [{marked(runs)}](#{runs.replace('_', '-')}).", ""]
        claims = figure.get("claims", [])
        lines += ["Claims:", ""] * bool(claims)
        lines += [f"- {marked(claim['says'])}" + _note(claim.get("note")) for claim in claims]
        if "printed_note" in figure:
            lines += ["", f"The printed best rates: {marked(figure['printed_note'])}."]
        lines += [""]
    return joined(lines)


def _note(text: str | None) -> str:
    return f" ({marked(text)})" if text else ""


def _python() -> str:
    lines = [
        "# From Python",
        "",
        "The public names of `import fcorun`. [From Python](../guide/python.md) shows an example.",
        "",
    ]
    for name in PUBLIC:
        kind = "function" if name.islower() else "class"
        members = [":members:", ":inherited-members:"] if name in ("Experiment", "Record", "Sweep", "Watcher") else []
        lines += [f"## {name}", "", *documented(f"auto{kind}", _home(name), *members)]
    return joined(lines)


def _contracts() -> str:
    lines = ["# Contracts of plug-ins", "", "[A new plug-in](../guide/plugins.md) shows how to write one.", ""]
    for module in CONTRACTS:
        lines += [f"## fcorun.{module}", "", *documented("automodule", f"fcorun.{module}", ":members:")]
    lines += ["## Arguments of an algorithm's functions", "", "``LocalData`` is above, with the algorithms.", ""]
    for name in ("Problem", "Batch", "Vector"):
        lines += documented("autoclass", f"fcorun.methods.problem.problem.{name}", ":members:", ":no-index:")
    return joined(lines)


def _home(name: str) -> str:
    import fcorun

    public = getattr(fcorun, name)
    return f"{public.__module__}.{public.__qualname__}"


def _repository_page(name: str) -> str:
    """Return a page of the repository's root with links from docs/reference; a file without a page keeps its name."""
    pages = {"README.md": "../index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.startswith("http") or target in pages:
            return f"[{text}]({pages.get(target, target)})"
        return f"[{text}](../{target[5:]})" if target.startswith("docs/") else f"{text} (`{target}`)"

    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", link, (DOCS.parent / name).read_text(encoding="utf-8"))


def _sources() -> str:
    used: dict[str, list[str]] = {}
    without: list[str] = []
    for group in GROUPS:
        for name in find_choices(group):
            kind, link = plugin_class(group, _choice_of(group, name)), f"[{group}={name}]({_place(group, name)})"
            source = read_source(kind) if kind else Source()
            for entry in source.entries:
                used.setdefault(entry.key, []).append(link)
            if source.text.startswith(UNPUBLISHED):
                without.append(f"- {link}: {marked(source.text)}")
    lines = ["# Sources", "", "`fcorun cite DIR` prints the sources of the records in `DIR`.", ""]
    for key, entry in load_catalogue().items():
        lines += [f"## {key}", "", marked(entry.label) + (f": {', '.join(used[key])}" if key in used else ""), ""]
        lines += ["```bibtex", entry.text, "```", ""]
    return joined(lines, "## Plug-ins without a paper", "", without)


if __name__ == "__main__":
    sys.exit(write(DOCS))
