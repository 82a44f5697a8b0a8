"""assay: which heads, MLPs and neurons make a language model do this, and how far can the numbers be trusted?"""

from assay import sites
from assay.data import PromptPair, PromptPairs, read_jsonl, read_pairs, tasks
from assay.errors import AssayError
from assay.methods import (
    activation_patching,
    attribution_patching,
    mean_ablation,
    measure,
    random_scores,
    zero_ablation,
)
from assay.model import Model, load
from assay.scores import Scores

__all__ = [
    "AssayError",
    "Model",
    "PromptPair",
    "PromptPairs",
    "Scores",
    "activation_patching",
    "attribution_patching",
    "load",
    "mean_ablation",
    "measure",
    "random_scores",
    "read_jsonl",
    "read_pairs",
    "sites",
    "tasks",
    "zero_ablation",
]
