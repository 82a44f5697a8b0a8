"""Gradient against cause: which components a gradient overlooks, and which it overrates."""

from assay.audit.measuring import audit_gradients, gradient_magnitude
from assay.audit.pruning import Pruning, prune
from assay.audit.ranks import RankAudit, audit_ranks
from assay.audit.result import Audit, AuditedSet

__all__ = [
    "Audit",
    "AuditedSet",
    "Pruning",
    "RankAudit",
    "audit_gradients",
    "audit_ranks",
    "gradient_magnitude",
    "prune",
]
