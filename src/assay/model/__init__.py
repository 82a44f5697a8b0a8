"""A Hugging Face causal language model seen as a residual stream and its components."""

from assay.model.backward import RuleSet, backward_rules, rule_set
from assay.model.loading import load
from assay.model.model import Layer, Model

__all__ = ["Layer", "Model", "RuleSet", "backward_rules", "load", "rule_set"]
