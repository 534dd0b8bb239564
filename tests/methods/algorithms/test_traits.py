"""The traits of an algorithm are stated in its class, and not inherited."""

from dataclasses import dataclass

import pytest
from helpers import choice_names, fails, small, traits_of

from fcorun import run
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms import FedAvg, FedDualAvg, Gram, Traits


def test_traits_are_not_inherited():
    @dataclass(frozen=True)
    class Mine(FedDualAvg):
        pass

    assert FedDualAvg.traits.mirrored
    assert Mine.traits == Traits()


def test_a_trait_outside_of_traits_is_refused():
    with pytest.raises(TypeError, match=r"traits = Traits\(psi_sides=\.\.\.\)"):

        @dataclass(frozen=True)
        class Misplaced(FedAvg):
            psi_sides = ()


def test_only_gram_itself_has_common_uploads():
    assert Gram().has_common_uploads

    class Mine(Gram):
        def local(self, problem, server, client, data):
            raise NotImplementedError

    assert not Mine().has_common_uploads


@pytest.mark.parametrize("name", choice_names("algo"))
def test_every_choice_has_traits(name):
    assert isinstance(traits_of(name), Traits)


@pytest.mark.parametrize("name", [name for name in choice_names("algo") if not traits_of(name).mirrored])
def test_algorithms_without_the_trait_refuse_mirror_maps(name):
    with fails(f"algo={name} knows no mirror maps"):
        prepare(small(f"algo={name}", "mirror=diagonal", "clients_per_round=null", "reg=l1"))


def test_a_plug_in_without_traits_refuses_mirror_maps(user_module):
    user_module("mine", "from fcorun.algorithms import FedDualAvg\n\n\nclass Mine(FedDualAvg):\n    pass\n")
    config = small("mirror=diagonal")
    config["algo"] |= {"class": "mine.Mine", "name": "mine"}
    with fails("algo=mine knows no mirror maps"):
        run(config)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"psi_sides": ("servers",)}, "traits.psi_sides=servers is not a choice: did you mean 'server'?"),
        ({"psi_sides": "server"}, "traits.psi_sides=server must be a tuple: give traits.psi_sides=('server',)"),
        ({"exact": "any"}, "traits.exact=any is not a choice"),
        ({"partial": "no"}, "traits.partial=no must be"),
    ],
)
def test_wrong_traits_are_refused(wrong, words):
    with fails(words):
        Traits(**wrong)
