"""fcorun new: the files of a plug-in of your own, which works and is to be changed."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.system.files import write_new
from fcorun.experiment.configuration.search_path import find_choices, use_config_dir
from fcorun.interface.cli.commands.common_command import CommandParser
from fcorun.interface.cli.terminal import Terminal

_TEMPLATES = Path(__file__).parent / "templates"  # KIND.py.txt of each kind, and KIND.yaml.txt or KIND.toml.txt
KINDS = tuple(sorted(path.name.partition(".")[0] for path in _TEMPLATES.glob("*.py.txt")))


def run(argv: Sequence[str]) -> int:
    """Write a plug-in of your own: NAME.py into this folder, and DIR/KIND/NAME.yaml, which names its class; of a score
    the package NAME, since scores are found in installed packages. The plug-in works as it is, and fcorun check tests
    it: change it step by step."""
    parser = CommandParser("new", run.__doc__, folders=False)
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=f"what to write: {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", help="its name, as in KIND=NAME: lower-case letters, digits and _")
    parser.add_argument("--config-dir", default="myconf", metavar="DIR", help="default: %(default)s")
    arguments = parser.parse_args(argv)
    kind = arguments.kind
    name = arguments.name
    config_dir = Path(arguments.config_dir)
    check_name(kind, name, config_dir)
    files = {"py": Path(f"{name}.py"), "yaml": config_dir / kind / f"{name}.yaml"}
    advice = f"fcorun check --config-dir {config_dir} {kind}={name} tests it"
    if kind == "score":
        files = {"py": Path(name, f"{name}.py"), "toml": Path(name, "pyproject.toml")}
        advice = f"pip install -e ./{name} installs it, and then fcorun check {kind}={name} tests it"
    for file in files.values():
        if file.exists():
            raise UserError(f"{file} exists; give another name, or remove the file")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    for ending, file in files.items():
        template = (_TEMPLATES / f"{kind}.{ending}.txt").read_text(encoding="utf-8")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_new(file, template.replace("TEMPLATE_CLASS", class_name).replace("TEMPLATE_NAME", name).encode())
    out = Terminal()
    out.print(f"wrote {' and '.join(map(str, files.values()))}")
    out.print(advice)
    return 0


def check_name(kind: str, name: str, config_dir: Path) -> None:
    """Raise UserError for a name that is no module's name, or that of a choice or of an installed module."""
    if not (name.isidentifier() and name.islower()):
        raise UserError(f"the name '{name}' is none of a module: give lower-case letters, digits and _")
    with use_config_dir(config_dir if config_dir.is_dir() else None):
        if name in find_choices(kind):
            raise UserError(f"{kind}={name} exists; give another name")
    if find_spec(name) is not None:
        raise UserError(f"an installed module is called {name}, and would be imported instead; give another name")
