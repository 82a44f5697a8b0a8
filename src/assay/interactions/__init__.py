"""What components and attention scores do together: self-repair inside the softmax, compensation between components."""

from assay.interactions.compensation import Compensation, compensation
from assay.interactions.result import SelfRepair
from assay.interactions.self_repair import self_repair

__all__ = ["Compensation", "SelfRepair", "compensation", "self_repair"]
