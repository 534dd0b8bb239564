# pyright: reportMissingImports=false
"""FedLab: its standalone simulation, ``StandalonePipeline``, with the handler and the serial trainer of its FedAvg.

Modifications:
- The trainer's ``train`` takes the steps of the method, because FedLab's own supports neither psi nor another loss than
  cross entropy.
- The task's cohorts and minibatches replace ``sample_clients`` and shuffling data loaders.
- For FedDualAvg, FedAvg averages the dual states: with server rate 1 the method is this mean.
- ``evaluate``, which the pipeline calls after each round, only records the time.
- FedLab's release is of October 2022, and runs with a current PyTorch. An empty module replaces torchvision, which
  FedLab's image data sets import.
"""

import without_torchvision  # noqa: F401

# isort: split
import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from task import load_task
from torch_model import Linear

task, out = load_task()
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
        task.record_time()


model = Linear(task)
server = Server(model, global_round=task.rounds, sample_ratio=task.cohort.shape[1] / (len(task.offsets) - 1))
Pipeline(server, Clients(model, num_clients=len(task.offsets) - 1)).main()
task.save_result(*task.solution(server._model.state), out)
