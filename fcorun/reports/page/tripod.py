"""The items of TRIPOD and TRIPOD+AI that a page can have, each with its place on the page."""

from fcorun.reports.page.elements import html_table, link_to_section

_SOURCES = (
    "TRIPOD: Collins et al., BMJ 2015;350:g7594. TRIPOD+AI: Collins et al., BMJ 2024;385:e078378. The list says where "
    "an item is found; whether it is complete is for its authors to judge."
)
_ELSEWHERE = "not on this page"
_WITH_INTERVALS, _BY_CLIENT = "23a", "23b"  # items of TRIPOD+AI
# item of TRIPOD, of TRIPOD+AI, what it asks for, and the section with the item ("" for none)
_ITEMS = (
    ("1", "1", "title", "main"),
    ("2", "2", "summary of question, rows and result", "main"),
    ("3a", "3a", "medical context and reason for the model", ""),
    ("4a", "5a", "source of the data", ""),
    ("4b", "5b", "dates of the data", ""),
    ("5a", "6a", "setting: the clients", "asked"),
    ("5b", "6b", "eligibility of participants", ""),
    ("6a", "8a", "outcome", "asked"),
    ("7a", "9b", "predictors: the candidate features", "asked"),
    ("7b", "9c", "how predictors were measured", ""),
    ("8", "10", "how the sample size was arrived at", ""),
    ("9", "11", "missing data", "asked"),
    ("10a", "7", "preparation of predictors", "asked"),
    ("10b", "12c", "type of model, and how it was built and chosen", "chosen"),
    ("10d", "12e", "measures of performance", "performance"),
    ("13a", "20a", "numbers of participants with and without the outcome", "asked"),
    ("13b", "20b", "characteristics of the participants", ""),
    ("14a", "21", "participants and events of each analysis", "asked"),
    ("15a", "22", "the full model, with its intercept", "result"),
    ("15b", "27a", "how to use the model for one person", ""),
    ("16", "23a", "performance, with intervals", "performance"),
    ("", "23b", "performance in different clients", "performance"),
    ("18", "26", "limitations", ""),
    ("21", "18f", "versions and settings of the software", "configuration"),
    ("22", "18a", "funding", ""),
)


def tripod_table(sections: dict[str, str], *, has_intervals: bool, has_clients: bool) -> str:
    """Return the items as a table.

    Args:
        sections: the headings of the page's sections by their ids.
        has_intervals, has_clients: whether the section on performance has intervals, and scores by client.
    """
    rows = []
    for old, new, item, section in _ITEMS:
        place = _ELSEWHERE
        if section in sections and (new != _BY_CLIENT or has_clients):
            suffix = ", without intervals" if new == _WITH_INTERVALS and not has_intervals else ""
            place = link_to_section(section, sections[section], suffix)
        rows.append([old, new, item, place])
    return html_table(["TRIPOD", "TRIPOD+AI", "item", "place"], rows, caption=_SOURCES)
