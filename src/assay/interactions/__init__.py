"""What components and attention scores do together: self-repair inside the softmax, compensation between
components, pairs and groups ablated together."""

from assay.interactions.compensation import Compensation, compensation
from assay.interactions.folder import load_self_repair, save_self_repair
from assay.interactions.pairs import Interactions, measure_interactions
from assay.interactions.result import SelfRepair
from assay.interactions.self_repair import self_repair

__all__ = [
    "Compensation",
    "Interactions",
    "SelfRepair",
    "compensation",
    "load_self_repair",
    "measure_interactions",
    "save_self_repair",
    "self_repair",
]
