# pyright: reportMissingImports=false
"""The model of the PyTorch competitors, whose three parameters are the state of a task."""

import torch
from task import State, Task

torch.set_num_threads(1)  # steps on 10 x 1024 numbers gain nothing by a second one, and wait for it on a busy machine


class Linear(torch.nn.Module):
    """A model with weights (d,), bias () and elapsed (): averaging models averages the state of both methods."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.weights, self.bias, self.elapsed = (torch.nn.Parameter(torch.from_numpy(part)) for part in task.start())

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Take a local step on a minibatch, (n, d) and (n,), in place, with the gradient by autograd."""
        task, weights, rate = self.task, self.weights.detach(), self.task.client_lr
        if task.dual:
            weights = weights.sign() * (weights.abs() - self.elapsed.detach() * task.strength).clamp(min=0)
        point = weights.clone().requires_grad_()
        loss = torch.nn.functional.mse_loss(x @ point + self.bias, y)
        slope, slope_of_bias = torch.autograd.grad(loss, (point, self.bias))
        with torch.no_grad():
            self.weights.sub_(slope, alpha=rate)
            self.bias.sub_(slope_of_bias, alpha=rate)
            self.elapsed.add_(rate)
            if not task.dual:
                self.weights.sub_(self.weights.sign(), alpha=rate * task.strength)

    @property
    def state(self) -> State:
        return [part.detach().numpy() for part in (self.weights, self.bias, self.elapsed)]
