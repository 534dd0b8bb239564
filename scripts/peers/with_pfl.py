# pyright: reportMissingImports=false
"""pfl-research: its simulated backend, its algorithm ``FederatedAveraging`` and its PyTorch model.

Modifications:
- ``train_one_user`` passes the step of the method to ``do_multiple_epochs_of``, the framework's loop over minibatches,
  because the framework's own step does not support psi.
- Users are sampled as in the task. A user's rows are in the order of the task's minibatches, and are not shuffled.
- For FedDualAvg, the algorithm averages the updates of the dual state: with server rate 1 the method is this mean.
- Users are never evaluated (``evaluation_frequency`` is the number of rounds, and the first round is not timed), and no
  metrics are printed.
"""

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from task import load_task
from torch_model import Linear

task, out = load_task()


class Model(Linear):
    """Model with the methods that the framework requires."""

    def loss(self, x, y):
        return torch.nn.functional.mse_loss(x @ self.weights + self.bias, y)

    def metrics(self, x, y):
        return {}


class Method(FederatedAveraging):
    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        def step(module, optimizer, batch, kwargs, arguments):
            module.step(*batch)

        model.do_multiple_epochs_of(user_dataset, central_context.model_train_params, step)
        return model.get_model_difference(initial_model_state), Metrics()


class Marks(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        task.record_time()
        return False, Metrics()


def user(drawn):
    rows = [row for batch in task.batches(*drawn) for row in batch]
    return Dataset(raw_data=[task.x[rows], task.y[rows]], user_id=str(drawn[1]))


sequence = iter([(number, client) for number, cohort in enumerate(task.cohort) for client in cohort])
data = FederatedDataset(user, lambda: next(sequence))
model = Model(task)
wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
Method().run(
    NNAlgorithmParams(task.rounds, task.rounds, task.cohort.shape[1], None),
    SimulatedBackend(data, data),
    wrapped,
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=task.client_lr, local_batch_size=task.rows.shape[-1]),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[Marks()],
    send_metrics_to_platform=False,
)
task.save_result(*task.solution(model.state), out)
