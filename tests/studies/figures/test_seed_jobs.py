"""The jobs that run the best points of a figure with further seeds."""

from fake_records import fake_config, fake_record

from fcorun.reports.build_table import build_table
from fcorun.studies.figures.reproduce import _list_seed_jobs
from fcorun.studies.figures.spec import Figure


def list_overrides(name: str, plugin: str, uplink: str) -> list[str]:
    config = fake_config(name) | {"uplink": {"name": uplink, "class": "fcorun.Identity"}}
    config["algo"]["class"] = plugin
    record = fake_record("s/0", config)
    ((_, job),) = _list_seed_jobs(Figure("t", seeds=[5]), build_table([record]), {"algo": name}, [record])
    return job.split()


def test_a_job_keeps_the_uplink_of_an_algorithm_whose_file_chooses_another():
    assert "uplink=identity" in list_overrides("proximal_gradient", "fcorun.EF21", "identity")


def test_a_variant_that_is_named_as_the_file_of_another_class_is_chosen_by_its_class():
    job = list_overrides("fedprox", "fcorun.FedProxSGD", "identity")
    assert job[:2] == ["algo=fedprox_sgd", "algo.name=fedprox"]
    assert not any(text.startswith("uplink") for text in job)
