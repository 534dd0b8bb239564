"""A multilayer perceptron."""

import math
from dataclasses import dataclass, field

import jax
import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import Objective


@dataclass(frozen=True)
class MLP(Objective):
    """Mean cross entropy of a network of ReLU layers: of a sigmoid for two classes, of a softmax for more.

    The parameters are ``weights1``, ``bias1``, ``weights2``, ... from the examples to the output. The loss is not
    convex.
    """

    source = "textbook"

    hidden: list[Count] = field(default_factory=lambda: [200, 200])

    tasks = ("binary", "multiclass")
    convex = False
    nonnegative = True

    def __post_init__(self):
        if not self.hidden:
            raise UserError(
                "`objective.hidden=[]` has no layer: give `objective.hidden=[200,200]`, or `objective=softmax`"
            )

    @property
    def regularized(self) -> tuple[str, ...]:  # type: ignore[override]
        """The weight matrices."""
        return tuple(f"weights{layer + 1}" for layer in range(len(self.hidden) + 1))

    def shapes(self, features: tuple[int, ...], classes: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of weights (units in, units out) and biases; a single output has (units,) and ()."""
        output = (classes,) if classes > 2 else ()
        units_in = math.prod(features)
        shapes = {}
        for layer, units_out in enumerate([*((units,) for units in self.hidden), output], start=1):
            shapes[f"weights{layer}"] = (units_in, *units_out)
            shapes[f"bias{layer}"] = units_out
            units_in = math.prod(units_out)
        return shapes

    def initial_parameters(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights from [-a, a] with a^2 = 6 / (units in + units out) (Glorot and Bengio); set biases to 0."""

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
