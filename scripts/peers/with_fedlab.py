# pyright: reportMissingImports=false
"""FedLab: its standalone simulation, ``StandalonePipeline``, with the handler and the serial trainer of its FedAvg.

Modifications:
- The trainer's ``train`` takes the steps of the method, for its own knows neither psi nor a loss but cross entropy.
- ``sample_clients`` and the minibatches are those of the task, in place of data loaders that shuffle.
- What its FedAvg averages is, for FedDualAvg, the dual state: with server rate 1 the method is just that mean.
- ``evaluate``, which the pipeline calls after each round, notes the time and nothing else.
- It is of October 2022, and runs with a PyTorch of today. An empty module stands in for torchvision, which its
  data sets of images import.
"""

import without_torchvision  # noqa: F401

# isort: split
import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from task import given
from torch_model import Linear

task, out = given()
x, y = torch.from_numpy(task.x), torch.from_numpy(task.y)


class Server(FedAvgServerHandler):
    def sample_clients(self):
        return task.cohort[self.round].tolist()

    @property
    def num_clients_per_round(self):
        return task.cohort.shape[1]


class Clients(FedAvgSerialClientTrainer):
    def local_process(self, payload, id_list):
        for client in id_list:
            self.cache.append(self.train(payload[0], task.batches(len(task.marks), client)))

    def train(self, model_parameters, train_loader):
        self.set_model(model_parameters)
        for rows in train_loader:
            self._model.step(x[rows], y[rows])
        return [self.model_parameters]


class Pipeline(StandalonePipeline):
    def evaluate(self):
        task.mark()


model = Linear(task)
server = Server(model, global_round=task.rounds, sample_ratio=task.cohort.shape[1] / (len(task.offsets) - 1))
Pipeline(server, Clients(model, num_clients=len(task.offsets) - 1)).main()
task.leave(*task.solution(server._model.state), out)
