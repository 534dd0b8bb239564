# pyright: reportMissingImports=false
"""Flower: its simulation with Ray, its message API, its strategy ``FedAvg``.

Modifications:
- ``configure_train`` is overridden: the cohort is the task's, and a message names the client whose rows the node uses.
- Clients compute in NumPy, because Flower requires no library. ``num_cpus`` is 1 for each client, so all cores work.
- For FedDualAvg, ``FedAvg`` averages the dual states: with server rate 1 the method is this mean.
- Evaluation on clients, logging, and the telemetry of Flower and Ray (``FLWR_TELEMETRY_ENABLED=0``) are turned off.
"""

import logging
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Task, load_task

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message, context):
    config = message.content["config"]
    task = Task.load_cached(config["task"])
    ended = task.local(message.content["arrays"].to_numpy_ndarrays(), config["server-round"] - 1, config["client"])
    size = int(np.diff(task.offsets)[config["client"]])
    content = {"arrays": ArrayRecord(ended), "metrics": MetricRecord({"num-examples": size})}
    return Message(RecordDict(content), reply_to=message)


class Drawn(FedAvg):
    """FedAvg with the cohorts of the task."""

    def configure_train(self, server_round, arrays, config, grid):
        while len(nodes := sorted(grid.get_node_ids())) < len(task.offsets) - 1:  # they come one after another
            time.sleep(0.1)
        for client in task.cohort[server_round - 1]:
            config = ConfigRecord({"server-round": server_round, "client": int(client), "task": task.path})
            content = RecordDict({"arrays": arrays, "config": config})
            yield Message(content, message_type="train", dst_node_id=nodes[client])

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        task.record_time()
        return found


@server_app.main()
def serve(grid, context):
    strategy = Drawn(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(task.start()), num_rounds=task.rounds)
    task.save_result(*task.solution(result.arrays.to_numpy_ndarrays()), out)


if __name__ == "__main__":
    task, out = load_task()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(task.offsets) - 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
