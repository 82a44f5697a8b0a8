"""Is the model what assay takes it for? Checked at load, and printed with figures by ``assay doctor``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.errors import ModelError
from assay.model.model import Model
from assay.model.placement import weight_of
from assay.model.recording import Recording, record

LIMITS = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest deviation relative to what is compared, both as root mean squares. Many families run their norms
and softmax in float32 whatever the weights are, hence no tighter limit in float64."""


@dataclass(frozen=True)
class Check:
    """One finding: ``figure`` must not exceed ``limit``."""

    name: str
    explanation: str
    figure: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.figure <= self.limit  # false for NaN


@torch.no_grad()
def check_model(model: Model) -> list[Check]:
    """All checks that need nothing but the model, on random tokens; only the first if that fails.

    Raises:
        ModelError: a module does not run once per layer.
    """
    training = len(model.modules_in_training_mode())
    eval_mode = Check("eval mode", "modules in training mode, where dropout would act", training, 0)
    if training:
        return [eval_mode]
    ids = probe_ids(model)
    plain = plain_logits(model, ids)
    recording = record(model, ids)
    limit = LIMITS[model.dtype]

    def check(name: str, explanation: str, pairs: Callable[[], list[tuple[Tensor, Tensor]]]) -> Check:
        return Check(name, explanation, max(relative_difference(*pair) for pair in pairs()), limit)

    return [
        eval_mode,
        check(
            "logit parity",
            "logits through assay's attention equal plain Hugging Face's",
            lambda: [(plain, model.logits(recording.residuals[-1]))],
        ),
        check(
            "residual identity",
            "residual after a layer = before + attention + MLP, every layer",
            lambda: [
                (after, before + (attention + mlp) * model.residual_multiplier)
                for before, after, attention, mlp in zip(
                    recording.residuals, recording.residuals[1:], recording.attentions, recording.mlps, strict=False
                )
            ],
        ),
        check(
            "head contributions",
            "what the heads add sums to what attention adds (its bias apart), every layer",
            lambda: [_head_sum(model, recording, layer) for layer in range(model.n_layers)],
        ),
        check(
            "batching",
            "each prompt alone gives the logits it has in a batch",
            lambda: [
                (plain[i : i + 1], model.logits(record(model, ids[i : i + 1]).residuals[-1])) for i in range(len(ids))
            ],
        ),
    ]


@torch.no_grad()
def check_padding(model: Model) -> Check:
    """Not needed by assay, which never pads: some rotary embeddings change with the padded length."""
    ids = probe_ids(model)
    return Check(
        "padding",
        "three padding tokens on the right change no logit of a real token",
        relative_difference(plain_logits(model, ids), _padded_logits(model, ids)),
        LIMITS[model.dtype],
    )


def require_sound(model: Model) -> None:
    """Raise with the first failed check and its figure."""
    model.require_ready()
    for check in check_model(model):
        if not check.passed:
            raise ModelError(
                f"{model.name} fails the check {check.name!r} ({check.explanation}): relative deviation "
                f"{check.figure:.3g}, limit {check.limit:.0e}. assay would give wrong numbers and refuses."
            )


def probe_ids(model: Model, prompts: int = 3, positions: int = 7) -> Tensor:
    """Random token ids (prompts, positions), the same at every call."""
    generator = torch.Generator().manual_seed(0)
    positions = min(positions, model.context_length or positions)
    return torch.randint(model.vocab_size, (prompts, positions), generator=generator).to(model.device)


def relative_difference(expected: Tensor, found: Tensor) -> float:
    """|found - expected| / |expected| in the Euclidean norm; 0 if both are 0."""
    difference = (found.double().to(expected.device) - expected.double()).norm()
    return 0.0 if difference == 0 else (difference / expected.double().norm()).item()


def plain_logits(model: Model, ids: Tensor, keep: int = 0) -> Tensor:
    """What Hugging Face gives, with the user's own attention and hooks; only the last ``keep`` positions if not 0."""
    with torch.no_grad():
        logits: Tensor = model.hf(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=keep
        ).logits
    return logits


def _padded_logits(model: Model, ids: Tensor) -> Tensor:
    room = 3 if model.context_length is None else min(3, model.context_length - ids.shape[1])
    padding = ids.new_zeros(len(ids), room)
    mask = torch.cat([torch.ones_like(ids), padding], dim=1)
    recording = record(model, torch.cat([ids, padding], dim=1), mask)
    return model.logits(recording.residuals[-1][:, : ids.shape[1]])


def _head_sum(model: Model, recording: Recording, layer: int) -> tuple[Tensor, Tensor]:
    found = model.layers[layer]
    z = recording.heads[layer]
    contributions = model.head_contributions(layer, z).sum(2)
    projection = found.output_projection
    bias = weight_of(projection, "bias")
    if not isinstance(bias, Tensor):
        return recording.attentions[layer] * model.residual_multiplier, contributions
    if found.has_attention_post_norm:
        raise ModelError(f"{model.name}: an output-projection bias under a post-norm is not supported.")
    return recording.attentions[layer] * model.residual_multiplier, contributions + bias * model.residual_multiplier
