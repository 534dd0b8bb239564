"""Wrong labels: clients whose training rows have flipped classes."""

from dataclasses import dataclass

from fcorun.base.errors import UserError
from fcorun.methods.communication.faults import Liars


@dataclass(frozen=True, kw_only=True)
class FlippedLabels(Liars):
    """Clients that learn from flipped labels, and send what they compute: class k of K becomes class K - 1 - k.

    Two classes are exchanged; of an odd number of classes, the middle one stays. Whatever measures a model, and a
    baseline or a reference, takes the labels of the data.
    """

    source = "experiments of @yin2018"
    what_liars_did = "trained on flipped labels"

    def check_task(self, task, names):
        if not task.has_classes:
            raise UserError(f"`faults={names['faults']}` exchanges classes, and `data={names['data']}` has {task.name} "
                            "targets: choose data with classes, or `faults=sign_flip`")  # fmt: skip

    def change_targets(self, targets, n_classes):
        return max(n_classes, 2) - 1 - targets  # data of two classes may come without their labels

    def corrupt(self, array, memory, key):
        return array, memory
