"""Every kind of message has the properties of its contract, in a study that asks for it."""

import functools

import pytest
from message_checks import CHECKS, MessageCase
from recorded_studies import STUDIES, plan_named, record, restorer, sites_of, write_tables

from fcorun.interface.checks.property_check import run_checks
from fcorun.sites.plan.messages.message_kind import list_kinds


@functools.cache
def find_cases(folder) -> dict[str, MessageCase]:
    """Return a case for each kind of message that a study asks for."""
    cases = {}
    for study in STUDIES:
        plan = plan_named(study)
        recorder = record(plan, folder / study)
        for request, before, answer in recorder.log:
            if request.name not in cases:
                site = sites_of(plan)["a"]
                getattr(site, "site", site).read_table()
                site.load_state(before)
                cases[request.name] = MessageCase(
                    plan.kinds[request.name], plan, request, answer, functools.partial(repeat, site, restorer(site))
                )
    return cases


def repeat(site, restore, request):
    """Return the answer of a site in an earlier state."""
    restore()
    return site.answer(request)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_tables()
        yield find_cases(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_kinds())
def test_a_message_has_the_properties_of_its_contract(cases, name):
    assert name in cases, "no study of tests/support/recorded_studies.py asks for this message"
    results = list(run_checks(CHECKS, cases[name]))
    assert [result for result in results if result.status == "failed"] == []


def test_names_are_those_of_one_kind_each():
    kinds = list_kinds()
    assert len({type(kind) for kind in kinds.values()}) == len(kinds) > 20
