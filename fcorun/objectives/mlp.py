"""A multilayer perceptron."""

import math
from dataclasses import dataclass, field

import jax
import numpy as np

from fcorun.config import Count
from fcorun.errors import UserError
from fcorun.objectives.base import Objective
from fcorun.objectives.logistic import Logistic


@dataclass(frozen=True)
class MLP(Objective):
    """Mean cross entropy of a network of ReLU layers: of a sigmoid for two classes, of a softmax for more.

    Its parameters are ``weights1``, ``bias1``, ``weights2``, .. from the examples to the output. It is not convex.

    Attributes:
        hidden: units of each hidden layer.
    """

    source = "textbook"

    hidden: list[Count] = field(default_factory=lambda: [200, 200])

    tasks = ("binary", "multiclass")
    convex = False

    def __post_init__(self):
        if not self.hidden:
            raise UserError("objective.hidden=[] has no layer: give objective.hidden=[200,200], or objective=softmax")

    @property
    def regularized(self) -> tuple[str, ...]:  # type: ignore[override]
        """The matrices of weights."""
        return tuple(f"weights{layer + 1}" for layer in range(len(self.hidden) + 1))

    def shapes(self, features: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
        """Of each matrix (units before, units after) and bias; the last ones of a single output are (units,) and ()."""
        found, units = {}, math.prod(features)
        for layer, after in enumerate([*((n,) for n in self.hidden), (classes,) if classes > 2 else ()], start=1):
            found |= {f"weights{layer}": (units, *after), f"bias{layer}": after}
            units = math.prod(after)
        return found

    def initial_parameters(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Weights uniform on [-a, a] with a^2 = 6 / (units before + units after), after Glorot and Bengio; biases 0."""

        def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
            if name not in self.regularized:
                return np.zeros(shape)
            limit = math.sqrt(6 / (shape[0] + math.prod(shape[1:])))
            return rng.uniform(-limit, limit, shape)

        return {name: draw(name, shape) for name, shape in shapes.items()}

    def predict(self, params, x):
        for layer in range(1, len(self.hidden) + 1):
            x = jax.nn.relu(x @ params[f"weights{layer}"] + params[f"bias{layer}"][None])
        last = len(self.hidden) + 1
        return x @ params[f"weights{last}"] + params[f"bias{last}"][None]

    loss = Logistic.loss
    scores = Logistic.scores
    probabilities = Logistic.probabilities
