# pyright: reportMissingImports=false
"""FedML: the FedAvg of its simulation in one process, ``FedAvgAPI``.

Modifications:
- The model trainer is a ``ClientTrainer`` that takes the steps of the method, because FedML's own trainers support
  neither psi nor regression.
- ``get_model_params`` copies the parameters. FedML's own trainers do not copy: on a CPU each client of the first round
  then starts where the previous client ended, and the objectives differ.
- ``_client_sampling`` is overridden: cohorts and minibatches are those of the task.
- For FedDualAvg, FedAvg averages the dual states: with server rate 1 the method is this mean.
- FedML's tests on all clients are omitted, and so are its tracking and ``fedml.init``, which contacts the vendor's
  server.
- An empty module replaces torchvision, which FedML imports for its image models.
"""

import without_torchvision  # noqa: F401

# isort: split
from types import SimpleNamespace

import numpy as np
import torch
from fedml.core import ClientTrainer
from fedml.core.mlops import MLOpsStore
from fedml.simulation.sp.fedavg import FedAvgAPI
from task import load_task
from torch_model import Linear

task, out = load_task()
x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)


class Trainer(ClientTrainer):
    def get_model_params(self):
        return {name: part.clone() for name, part in self.model.state_dict().items()}

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters)

    def train(self, train_data, device, args):
        for rows in task.batches(len(task.marks), train_data):
            self.model.step(x[rows], y[rows])


class Drawn(FedAvgAPI):
    def _client_sampling(self, round_idx, client_num_in_total, client_num_per_round):
        return task.cohort[round_idx].tolist()

    def _aggregate(self, w_locals):
        found = super()._aggregate(w_locals)
        task.record_time()
        return found

    def _local_test_on_all_clients(self, round_idx):
        pass


sizes = np.diff(task.offsets).tolist()
clients = dict(enumerate(range(len(sizes))))  # what it hands to the trainer as data: whose turn it is
args = SimpleNamespace(
    comm_round=task.rounds,
    client_num_in_total=len(sizes),
    client_num_per_round=task.cohort.shape[1],
    frequency_of_the_test=task.rounds,
    dataset="lasso",
)
MLOpsStore.mlops_args, MLOpsStore.mlops_bind_result = args, False  # it tracks nothing and reports to nobody
model = Linear(task)
dataset = [sum(sizes), 0, None, None, dict(enumerate(sizes)), clients, clients, 1]
simulation = Drawn(args, torch.device("cpu"), dataset, model)
simulation.model_trainer = Trainer(model, args)
for client in simulation.client_list:
    client.model_trainer = simulation.model_trainer
simulation.train()
task.save_result(*task.solution(model.state), out)
