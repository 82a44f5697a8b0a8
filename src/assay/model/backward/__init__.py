"""Backward passes that follow other rules than the derivative; the forward pass stays what it is."""

from assay.model.backward.context import backward_rules, installed, require_no_other_rules
from assay.model.backward.rules import PLAIN, PRESETS, PRODUCTS, Preset, RuleSet, rule_set

__all__ = [
    "PLAIN",
    "PRESETS",
    "PRODUCTS",
    "Preset",
    "RuleSet",
    "backward_rules",
    "installed",
    "require_no_other_rules",
    "rule_set",
]
