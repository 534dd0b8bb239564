"""The sources of plug-ins, and the catalogue of BibTeX."""

import importlib
import pkgutil
import re
import unicodedata
from dataclasses import dataclass
from inspect import isabstract
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import fails

import fcorun
from fcorun.base.config import IDENTITY_SECTIONS, SECTIONS
from fcorun.base.sources import catalogue as sources
from fcorun.base.sources.catalogue import UNPUBLISHED, BibEntry, Source, load_catalogue, parse_source, read_source
from fcorun.methods.algorithms import FedDualAvg
from fcorun.reports.bibliography import STABILITY_SOURCE
from fcorun.results.inference.methods import SOURCES
from fcorun.results.score_intervals import score_table as score_table

NEEDED = {"article": ["journal", "year"], "inproceedings": ["booktitle", "year"], "misc": ["eprint", "archiveprefix"]}
BIB = Path(sources.__file__).with_name("catalogue.bib").read_text()


def all_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(all_subclasses, kind.__subclasses__()))


def plugin_classes() -> list[type]:
    """Return every concrete plug-in class of the package except trackers, with or without a YAML."""
    bases = [base for section in IDENTITY_SECTIONS for base in SECTIONS[section].base_classes]
    for name in {base.__module__.rpartition(".")[0] for base in bases}:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    candidates = {
        kind
        for section in IDENTITY_SECTIONS
        for base in SECTIONS[section].base_classes
        for kind in all_subclasses(base)
    }
    own = {kind for kind in candidates if kind.__module__.startswith("fcorun.") and kind.__name__[0] != "_"}
    return sorted(filterfalse(isabstract, own), key=lambda kind: (kind.__module__, kind.__name__))


@pytest.mark.parametrize("plugin", plugin_classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_plug_in_names_its_source_once(plugin):
    source = read_source(plugin)
    assert source.text, "give it source = '... of @KEY', an entry of sources/catalogue.bib, or 'ours' or 'textbook'"
    assert source.entries or source.text.split(",")[0] in UNPUBLISHED
    for entry in source.entries:  # the docstring does not repeat the source
        family = entry.label.split()[0].strip(",")
        assert not re.search(rf"\b{family}\b.*\b{entry.fields['year']}\b", plugin.__doc__ or "")


def test_plugin_classes_are_found():
    assert len(plugin_classes()) > 60


def test_every_entry_is_the_source_of_a_plug_in_or_of_a_study():
    texts = [*SOURCES.values(), *score_table.SOURCES.values(), STABILITY_SOURCE]
    named = [*map(read_source, plugin_classes()), *map(parse_source, texts)]
    assert {entry.key for source in named for entry in source.entries} | {"fcorun"} == set(load_catalogue())


@pytest.mark.parametrize("entry", load_catalogue().values(), ids=list(load_catalogue()))
def test_an_entry_is_complete(entry: BibEntry):
    kind = entry.text[1:].partition("{")[0]
    needed = ["author", "title", *(NEEDED[kind] if entry.key != "fcorun" else [])]
    assert [name for name in needed if not entry.fields.get(name)] == []
    lines = entry.text.splitlines()
    assert lines[0] == f"@{kind}{{{entry.key},"
    assert lines[-1] == "}"
    assert all(re.fullmatch(r"  [a-z]+ *= \{.*\},", line) for line in lines[1:-1])  # one field in each line, closed
    assert all(line.count("{") == line.count("}") for line in lines[1:-1])
    assert len(entry.fields) == len(lines) - 2
    assert "\\" not in entry.fields["author"]  # labels show names as they are written
    if entry.key != "fcorun":
        names = {"dinh2020": "Dinh", "vandegeer2014": "van de Geer", "vanbuuren2011": "van Buuren"}
        name = names.get(entry.key, entry.label.split()[0])
        family = unicodedata.normalize("NFKD", name).lower()
        assert entry.key.startswith(re.sub("[^a-z]", "", family) + entry.fields["year"])
    if "pages" in entry.fields:
        first, last = map(int, entry.fields["pages"].split("--"))
        assert first < last
    assert re.fullmatch(r"10\.\d{4,5}/\S+", entry.fields.get("doi", "10.0000/none"))  # no address, no "doi:"
    assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.fields.get("eprint", "0000.00000"))
    assert entry.fields.get("archiveprefix") == ("arXiv" if "eprint" in entry.fields else None)
    assert "volume" in entry.fields or "series" not in entry.fields


def test_the_catalogue_is_sorted_and_read_completely():
    keys = re.findall(r"(?m)^@\w+\{(.*),$", BIB)
    assert keys == ["fcorun", *sorted(keys[1:])] == list(load_catalogue())
    assert BIB.count("@") == len(keys)


def test_citation_cff_agrees_with_the_catalogue():
    cff = Path(fcorun.__file__).parent.parent / "CITATION.cff"
    citation = yaml.safe_load(cff.read_text())
    assert load_catalogue()["fcorun"].fields["title"] == citation["title"]
    assert load_catalogue()["fcorun"].fields["author"] == f"{{{citation['authors'][0]['name']}}}"
    (paper,) = citation["references"]
    authors = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in paper["authors"])
    fields = load_catalogue()["yuan2021"].fields
    volume_and_pages = (paper["collection-title"], str(paper["volume"]), f"{paper['start']}--{paper['end']}")
    assert volume_and_pages == (fields["series"], fields["volume"], fields["pages"])
    assert (fields["author"], fields["title"], fields["year"], fields["booktitle"]) == (
        (authors, paper["title"], str(paper["year"]), paper["conference"]["name"])
    )


@pytest.mark.parametrize(
    ("authors", "label"),
    [
        ("{Yuan, Honglin}", "Yuan (2021)"),
        ("{Honglin Yuan and Zaheer, Manzil}", "Yuan and Zaheer (2021)"),
        ("{T. Dinh, Canh and Tran, Nguyen H. and\n  Nguyen, Tuan Dung}", "T. Dinh, Tran and Nguyen (2021)"),
        ("{A, B and C, D and E, F and G, H}", "A et al. (2021)"),
        ('"Ada {Lovelace}"', "Lovelace (2021)"),
        ("{Ludwig van der Berg and Gödel, Kurt and de la Fuente, Ana}", "van der Berg, Gödel and de la Fuente (2021)"),
        (r"{G\"odel, K. and \}", r"G\"odel and \ (2021)"),
        ("{{The many authors}}", "The many authors (2021)"),
    ],
)
def test_an_entry_of_the_class_is_labelled_by_authors_and_year(authors, label):
    text = f"@article{{me, author = {authors}, year = 2021, title = {{On {{a}} = b, c}}}}"
    source = parse_source("algorithm 2 of @me;\nsee @yuan2021 (a@b.org)", f"\n    {text}\n")
    assert source.text == f"algorithm 2 of {label}; see Yuan, Zaheer and Reddi (2021) (a@b.org)"
    assert [entry.key for entry in source.entries] == ["me", "yuan2021"]
    assert source.entries[0].text == text
    assert source.entries[0].fields["title"] == "On {a} = b, c"


def test_without_a_text_the_source_is_the_entries():
    bibtex = "@misc{a, author = {A, B}, year = 2021}\n\n@misc{c, author = {C, D}, month = jan, year = {2022}}"
    source = parse_source("", bibtex)
    assert source.text == "A (2021), C (2022)"
    assert "\n\n".join(entry.text for entry in source.entries) == bibtex


@pytest.mark.parametrize("key", ["DBLP:conf/icml/YuanZR21", "a.b+c-d", "C++", "J:"])
@pytest.mark.parametrize("after", ["", ".", ":", ": 2", "; b", "/@yuan2021", "/2", ")"])
def test_a_key_ends_before_punctuation(key, after):
    bibtex = f"@article{{{key}, author = {{A, B}}, year = 2021}}"
    assert parse_source("", bibtex).text == "A (2021)"
    labelled = after.replace("@yuan2021", "Yuan, Zaheer and Reddi (2021)")
    assert parse_source(f"step 1 of @{key}{after}", bibtex).text == f"step 1 of A (2021){labelled}"


def test_a_source_is_not_inherited():
    class Mine(FedDualAvg):
        pass

    assert read_source(FedDualAvg).entries == (load_catalogue()["yuan2021"],)
    assert read_source(Mine) == Source()


def test_options_of_these_names_are_no_source():
    @dataclass(frozen=True)
    class Mine:
        source: str = "@nobody"
        bibtex: str = "@misc{"

    assert read_source(Mine) == Source()


@pytest.mark.parametrize(
    ("source_text", "bibtex", "sentence"),
    [
        ("@yuan2012", "", "Mine.source: there is no entry @yuan2012: add bibtex = '@article{yuan2012, ...}', or did "
                          "you mean 'yuan2021'?"),
        ("of @me", "@misc{me, title = {a}", "Mine.bibtex: not BibTeX: syntax error in line 1: premature end of file"),
        ("of @me", "@misc{me, author = {A, B, C, D}}", "Mine.bibtex: not BibTeX: Too many commas"),
        ("of @me", "@string{a = {b}}\n@misc{me, title = a}", "Mine.bibtex: @string is no entry"),
        ("of @me, @you", "@misc{me, title = {a}}", "there is no entry @you"),
        ("of @you: it", "@misc{me, title = {a}}", "there is no entry @you: add"),
        ("of @you/me.", "@misc{me, title = {a}}", "there is no entry @you/me: add"),
    ],
)  # fmt: skip
def test_a_broken_source_is_one_sentence(source_text, bibtex, sentence):
    broken: Any = type("Mine", (), {"source": source_text, "bibtex": bibtex})
    with fails(sentence):
        read_source(broken)


def test_the_text_of_a_class_names_no_month_for_another():
    with fails("@string"):
        parse_source("", "@string{jan = {x}}")
    assert parse_source("", "@misc{me, month = jan}").entries[0].fields["month"] == "January"
