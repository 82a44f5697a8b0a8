"""The methods, one file each, named as their papers name them."""

from assay.methods.activation_patching import activation_patching
from assay.methods.atp_star import atp_star
from assay.methods.attribution_patching import attribution_patching
from assay.methods.direct_effect import direct_effect
from assay.methods.gim import gim
from assay.methods.hvp import hvp
from assay.methods.hvp_sampled import hvp_sampled
from assay.methods.integrated_gradients import integrated_gradients
from assay.methods.integrated_hessians import integrated_hessians
from assay.methods.local_curvature import local_curvature
from assay.methods.mean_ablation import mean_ablation
from assay.methods.method import Method, measure
from assay.methods.ms_hvp import ms_hvp
from assay.methods.path_patching import path_patching
from assay.methods.random_scores import random_scores
from assay.methods.registry import METHODS
from assay.methods.resample_ablation import resample_ablation
from assay.methods.two_point import two_point
from assay.methods.zero_ablation import zero_ablation

__all__ = [
    "METHODS",
    "Method",
    "activation_patching",
    "atp_star",
    "attribution_patching",
    "direct_effect",
    "gim",
    "hvp",
    "hvp_sampled",
    "integrated_gradients",
    "integrated_hessians",
    "local_curvature",
    "mean_ablation",
    "measure",
    "ms_hvp",
    "path_patching",
    "random_scores",
    "resample_ablation",
    "two_point",
    "zero_ablation",
]
