"""assay: which heads, MLPs and neurons make a language model do this, and how far can the numbers be trusted?"""

from assay import sites
from assay.comparison import Comparison, compare
from assay.data import Metric, PromptPair, PromptPairs, read_jsonl, read_pairs, tasks
from assay.errors import AssayError
from assay.methods import (
    activation_patching,
    atp_star,
    attribution_patching,
    direct_effect,
    gim,
    hvp,
    hvp_sampled,
    integrated_gradients,
    integrated_hessians,
    local_curvature,
    mean_ablation,
    measure,
    ms_hvp,
    path_patching,
    random_scores,
    resample_ablation,
    two_point,
    zero_ablation,
)
from assay.model import Model, RuleSet, backward_rules, load, rule_set
from assay.scores import Scores
from assay.screening import ResponseCurve, ScreenedScores, response_curve, screen
from assay.tokens import Explanation, Explanations, Question, explain, explain_all, read_questions

__all__ = [
    "AssayError",
    "Comparison",
    "Explanation",
    "Explanations",
    "Metric",
    "Model",
    "PromptPair",
    "PromptPairs",
    "Question",
    "ResponseCurve",
    "RuleSet",
    "Scores",
    "ScreenedScores",
    "activation_patching",
    "atp_star",
    "attribution_patching",
    "backward_rules",
    "compare",
    "direct_effect",
    "explain",
    "explain_all",
    "gim",
    "hvp",
    "hvp_sampled",
    "integrated_gradients",
    "integrated_hessians",
    "load",
    "local_curvature",
    "mean_ablation",
    "measure",
    "ms_hvp",
    "path_patching",
    "random_scores",
    "read_jsonl",
    "read_pairs",
    "read_questions",
    "resample_ablation",
    "response_curve",
    "rule_set",
    "screen",
    "sites",
    "tasks",
    "two_point",
    "zero_ablation",
]
