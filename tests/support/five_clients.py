"""Five clients with quadratic losses, for tests of the oracles."""

import boxes
import numpy as np
import personal_boxes

P = np.array([0.1, 0.3, 0.05, 0.35, 0.2])
LOCAL_STEPS = list(np.random.default_rng(2).geometric(0.25, 400))
COHORTS = [list(np.random.default_rng([3, r]).choice(5, 2, replace=False)) for r in range(700)]


def quadratics(seed=0, clients=5, d=6, low=0.5, high=5.0):
    """Return the quadratics of clients with different curvatures, eigenvectors and minimizers."""
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.standard_normal((clients, d, d)))[0]
    values = np.geomspace(low, high, d) * rng.uniform(0.6, 1, (clients, 1))
    return bases * values[:, None] @ bases.mT, 2 * rng.standard_normal((clients, d))


H, C = quadratics()
START = np.random.default_rng(1).standard_normal(6)
SMALLEST, LARGEST = np.linalg.eigvalsh(H).min(), np.linalg.eigvalsh(H).max()  # 0.30 and 4.9
STEP = (SMALLEST * LARGEST) ** -0.5
L1 = boxes.soft(0.8)
SMOOTH, SPARSE = boxes.optimum(H, C, P), boxes.optimum(H, C, P, L1)


def max_difference(actual, expected) -> float:
    """Return the largest difference of two arrays."""
    return np.abs(np.asarray(actual) - expected).max()


def run(name, rounds, *arguments, **options):
    """Run a method of personal_boxes.py on these clients."""
    return getattr(personal_boxes, name)(H, C, P, START, rounds, *arguments, **options)
