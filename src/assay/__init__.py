"""assay: which heads, MLPs and neurons make a language model do this, and how far can the numbers be trusted?

Names are imported when the first of them is asked for: torch and transformers take seconds, which ``assay --help`` and
worker processes do not wait for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay import sites
    from assay.audit import Audit, audit_gradients
    from assay.comparison import Comparison, compare
    from assay.data import Metric, PromptPair, PromptPairs, read_jsonl, read_pairs, tasks
    from assay.errors import AssayError
    from assay.interactions import (
        Compensation,
        Interactions,
        SelfRepair,
        compensation,
        measure_interactions,
        self_repair,
    )
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
    "Audit",
    "Comparison",
    "Compensation",
    "Explanation",
    "Explanations",
    "Interactions",
    "Metric",
    "Model",
    "PromptPair",
    "PromptPairs",
    "Question",
    "ResponseCurve",
    "RuleSet",
    "Scores",
    "ScreenedScores",
    "SelfRepair",
    "activation_patching",
    "atp_star",
    "attribution_patching",
    "audit_gradients",
    "backward_rules",
    "compare",
    "compensation",
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
    "measure_interactions",
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
    "self_repair",
    "sites",
    "tasks",
    "two_point",
    "zero_ablation",
]

_HOMES = (
    "errors",
    "model",
    "sites",
    "data",
    "scores",
    "methods",
    "comparison",
    "screening",
    "interactions",
    "audit",
    "tokens",
)

if not TYPE_CHECKING:  # a checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        for home in _HOMES:
            module = import_module(f"assay.{home}")
            if name == home:
                return module
            if name in __all__ and name in vars(module):
                return vars(module)[name]
        raise AttributeError(f"module 'assay' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(__all__)
