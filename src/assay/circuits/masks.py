"""Masks of edges learned by gradient descent: which edges are needed, whatever others are there.

Every edge e is kept with a probability p_e that is learned. A sampled circuit has it whole with probability
p_e - w/2, not at all with 1 - p_e - w/2, and a uniform share of it with w = p_e (1 - p_e). The integral of the slope
over the shares is the difference between having the edge and not, so the slope where the share is uniform, times
dp_e/dlogit_e / w = 1, is an unbiased estimate of the gradient of the expected loss (uniform gradient sampling, Li &
Janson, arXiv 2409.09951). The loss is the squared error of the circuit's metric against the model's, in units of the
difference between clean and corrupted prompts, plus the penalty times the mean of p.

Probabilities start from the ranks of `eap-ig-inputs` by absolute score, which makes this the sequential ensemble of
Mondorf et al. (arXiv 2510.06811), with the above in the place of their edge pruning.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from assay.circuits.contrast import Contrast, Study
from assay.circuits.first_order import eap_ig_inputs
from assay.circuits.method import EdgeMethod
from assay.engine.gradients import read_metric
from assay.errors import OptionError

STEPS = 100
RATE = 0.05
PENALTY = 1.0
START = (1.0, 4.0)
"""Logits that the edges of lowest and of highest score start from: near the whole model, where an edge that is needed
together with others shows its effect."""


def edge_masks(steps: int = STEPS, seed: int = 0, penalty: float = PENALTY) -> EdgeMethod:
    """Learned probabilities of being kept.

    Args:
        steps: of Adam, each on one sampled circuit per prompt batch, so what is learned depends on the examples
            together, and within its noise on the memory that decides the batches.
        seed: of what is sampled.
        penalty: of keeping all edges; keeping none costs 1.

    Raises:
        OptionError: no step, or a penalty that is not positive.
    """
    if steps < 1:
        raise OptionError(f"edge-masks takes at least 1 step, not {steps}.")
    if not 0 < penalty < float("inf"):
        raise OptionError(f"The penalty must be positive, not {penalty}.")
    return EdgeMethod(
        "edge-masks", _no_contrast, learn=partial(_learned, steps=steps, seed=seed, penalty=penalty),
        estimates_effect=False, has_unit=False, parameters={"steps": steps, "seed": seed, "penalty": penalty},
        description="probabilities of edges, learned from eap-ig-inputs on",
        source="Li & Janson, arXiv 2409.09951; Mondorf et al., arXiv 2510.06811",
    )  # fmt: skip


def _no_contrast(_: Contrast) -> Tensor:
    raise AssertionError("masks are learned on all examples together")


def _learned(study: Study, steps: int, seed: int, penalty: float) -> np.ndarray:
    """(1, E)"""
    logits = torch.from_numpy(_start(study)).to(study.model.device)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam([logits], lr=RATE)
    for _ in range(steps):
        logits.grad = torch.zeros_like(logits)
        for contrast in study.contrasts():
            kept, uniform = sample(torch.sigmoid(logits), generator)
            slope = loss_slope(contrast, kept, study.baseline.difference) / study.n
            logits.grad += torch.where(uniform, slope, 0.0)
        p = torch.sigmoid(logits)
        logits.grad += penalty / len(p) * p * (1 - p)
        optimiser.step()
    return torch.sigmoid(logits).cpu().numpy()[None]


def _start(study: Study) -> np.ndarray:
    """(E,) logits by the ranks of eap-ig-inputs."""
    method, scores = eap_ig_inputs(), np.zeros(study.graph.n_edges)
    for contrast in study.contrasts():
        scores += method.compute(contrast).double().sum(0).cpu().numpy()
    ranks = (rankdata(np.abs(scores)) - 1) / max(1, len(scores) - 1)
    lowest, highest = START
    found: np.ndarray = lowest + (highest - lowest) * ranks
    return found


def sample(p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(E,) shares of edges, and where they are uniform."""
    drawn = torch.rand(len(p), generator=generator, dtype=p.dtype).to(p.device)
    share = torch.rand(len(p), generator=generator, dtype=p.dtype).to(p.device)
    half = p * (1 - p) / 2
    uniform = (drawn > p - half) & (drawn < p + half)
    return torch.where(uniform, share, (drawn <= p - half).to(p.dtype)), uniform


def loss_slope(contrast: Contrast, kept: Tensor, difference: float) -> Tensor:
    """(E,) derivative by the shares of edges of the squared error, summed over the rows.

    Args:
        kept: (E,) between 0 and 1.
        difference: of the metric between clean and corrupted prompts, the unit of errors.
    """
    with torch.no_grad():
        clean = read_metric(contrast.model, contrast.base.residuals[-1], contrast.batch, contrast.metric)
    shares = kept.detach().to(contrast.counterfactual.dtype).requires_grad_(True)
    with torch.enable_grad():
        values = contrast.runner().shares(contrast.graph.absent_shares(shares.unsqueeze(0)))[0]
        loss = ((values - clean) / difference).square().sum()
        (slope,) = torch.autograd.grad(loss, shares)
    contrast.response.cost.backward(len(values), contrast.batch.positions - contrast.start, contrast.model.n_layers)
    return slope.double()
