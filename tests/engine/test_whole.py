"""A client's whole data beside its minibatches: truly all of its rows, wherever these lie, and counted as all."""

import numpy as np
import pytest
import svrg
from helpers import engine_of, flat, ragged, small, snapshots
from quadratics import Quadratics, outputs_by_round

from fcorun import compose, run
from fcorun.data.datasets.subset import take_subset
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.fitting import PathFitter
from fcorun.studies.selection.path import RegularizationPath

SIZES = (3, 7, 10)


def of_svrg(config: dict) -> dict:
    """A configuration of FedAvg as one of ``svrg.SVRG``."""
    config["algo"] |= {"class": f"{svrg.__name__}.SVRG", "name": "svrg", "client_lr": 0.05, "server_lr": 1.0}
    return config


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("topology=tree", "topology.edges=1"), ("debug=true",)], ids=str)
def test_it_is_all_rows_of_the_client(more, tmp_path):
    """Against the box in plain NumPy, on clients of which each has another number of steps."""
    config = of_svrg(ragged(tmp_path, "algo=fedavg", "batch_size=3", "rounds=2", *more))
    q = Quadratics(config)
    x, y, w = np.column_stack([q.data.train.x, np.ones(20)]), q.data.train.y, np.zeros(7)

    def gradient(rows, w):
        return 2 / len(rows) * x[rows].T @ (x[rows] @ w - y[rows])

    expected = []
    for number in range(2):
        rows, ends = q.drawn.rows[number].reshape(3, -1, 3), []
        for m in range(3):
            own = w
            for batch in rows[m]:
                if (batch := batch[batch >= 0]).size:
                    own = own - 0.05 * (gradient(batch, own) - gradient(batch, w) + q.H[m] @ w - q.c[m])
            ends.append(own)
        w = q.p @ ends
        expected.append(w)
    np.testing.assert_allclose(outputs_by_round(config), expected, rtol=1e-10, atol=1e-12)
    assert snapshots(config)[-1].work.tolist() == [[2 * (20 + 2 * 20), 0]]


@pytest.mark.slow
def test_it_is_as_large_where_clients_are_some_of_many():
    """Clients of one size, a part of them in each round, in chunks and in a grid."""
    config = of_svrg(small("algo=fedavg", "precision=float64", "rounds=2", "eval_every=1"))
    one = snapshots(config)[-1]
    assert one.work.tolist() == [[2 * 3 * 3 * 12, 0]]
    for changes in ({"clients_at_once": 2}, {"debug": True}):
        other = snapshots(config | changes)[-1]
        np.testing.assert_allclose(flat(other.solution), flat(one.solution), rtol=1e-9)
    faster = of_svrg(small("algo=fedavg", "precision=float64", "rounds=2", "eval_every=1"))
    faster["algo"]["client_lr"] = 0.06
    both = snapshots(config, faster)[-1]
    np.testing.assert_allclose(both.solution["weights"][0], one.solution["weights"][0], rtol=1e-9)
    assert both.work.tolist() == 2 * one.work.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("more", [("clients_per_round=2",), ("topology=tree", "topology.edges=2", "topology.rounds=2")])
def test_on_disk_and_in_memory_are_one(more, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "rows").mkdir()
    client = rng.choice(4, 60, p=[0.4, 0.3, 0.2, 0.1])
    for name, values in {"X": rng.standard_normal((60, 6)), "y": rng.standard_normal(60), "client": client}.items():
        np.save(tmp_path / "rows" / f"{name}.npy", values)
    given = ("algo=fedavg", "data=table", f"data.path={tmp_path / 'rows'}", "data.test=0.1", "precision=float64",
             "rounds=4", "eval_every=2", "batch_size=7", *more)  # fmt: skip
    one, other = (run(of_svrg(compose([*given, f"data.resident={way}"])), way) for way in ("true", "false"))
    np.testing.assert_allclose(flat(other.solution), flat(one.solution), rtol=1e-12)
    assert other.metrics["grad_evals"].tolist() == one.metrics["grad_evals"].tolist()


@pytest.mark.slow
def test_of_a_fold_it_is_what_is_left(tmp_path):
    """A path of a study on a part of the rows is an ordinary run on a table of that part."""
    sizes, rng = (7, 10, 9), np.random.default_rng(3)
    owner = np.repeat(np.arange(3), sizes)
    x, y = rng.standard_normal((26, 4)), rng.standard_normal(26)
    held = np.concatenate([np.arange(n) for n in sizes]) % 3 == 1

    def config(name, there):
        np.savez(
            tmp_path / f"{name}.npz",
            X=x[there],
            y=y[there],
            client=owner[there],
            validation=held[there] & (name == "part"),
        )
        given = (
            "data=table",
            f"data.path={tmp_path / name}.npz",
            "data.task=regression",
            "precision=float64",
            "rounds=3",
        )
        return of_svrg(compose(["algo=fedavg", *given, "eval_every=3", "batch_size=4", "tail_rounds=1"]))

    experiment = prepare(config("all", held | ~held))
    data, found = load_data(experiment), []
    fitter = PathFitter(experiment, data, RegularizationPath("strength", np.array([0.1])), data.train.sizes)
    found.extend(fitter.fit([lambda: take_subset(data, ~held, held)]))
    record = run(config("part", held | ~held), "ordinary")
    np.testing.assert_allclose(flat({n: v[0] for n, v in found[0].solution.items()}), flat(record.solution), rtol=1e-9)


def test_who_does_not_ask_for_it_has_no_rows_gathered():
    """Neither in the program nor among what is fetched from disk."""
    config = small("algo=fedavg")
    assert not engine_of(config).federation.needs_whole_data
    assert engine_of(of_svrg(config)).federation.needs_whole_data
