"""assay: which heads, MLPs and neurons make a language model do this, and how far can the numbers be trusted?"""

from assay import sites
from assay.data import Metric, PromptPair, PromptPairs, read_jsonl, read_pairs, tasks
from assay.errors import AssayError
from assay.methods import (
    activation_patching,
    attribution_patching,
    direct_effect,
    mean_ablation,
    measure,
    path_patching,
    random_scores,
    resample_ablation,
    two_point,
    zero_ablation,
)
from assay.model import Model, load
from assay.scores import Scores

__all__ = [
    "AssayError",
    "Metric",
    "Model",
    "PromptPair",
    "PromptPairs",
    "Scores",
    "activation_patching",
    "attribution_patching",
    "direct_effect",
    "load",
    "mean_ablation",
    "measure",
    "path_patching",
    "random_scores",
    "read_jsonl",
    "read_pairs",
    "resample_ablation",
    "sites",
    "tasks",
    "two_point",
    "zero_ablation",
]
