"""What differs between architectures, as a table; the checks at load test it instead of trusting it.

To add a family, add one entry, and its tiny configuration to ``tests/families.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from assay.errors import ModelError


@dataclass(frozen=True)
class Family:
    """Where the parts of one architecture live.

    Paths are dotted: ``layers`` and ``final_norm`` from the causal LM, ``output_projection`` from the
    attention module, the others from one decoder layer.
    """

    name: str
    model_types: tuple[str, ...]
    layers: str
    final_norm: str
    attention: str
    output_projection: str
    mlp: str
    attention_contribution: str
    """Module whose output is added to the residual stream: the attention itself, or its post-norm."""
    mlp_contribution: str
    logit_softcap: str | None = None
    """Configuration entry c of ``logits = c * tanh(logits / c)``."""


def _llama_like(name: str, *model_types: str) -> Family:
    return Family(
        name=name,
        model_types=model_types,
        layers="model.layers",
        final_norm="model.norm",
        attention="self_attn",
        output_projection="o_proj",
        mlp="mlp",
        attention_contribution="self_attn",
        mlp_contribution="mlp",
    )


def _gemma_with_post_norms(name: str, *model_types: str) -> Family:
    return Family(
        name=name,
        model_types=model_types,
        layers="model.layers",
        final_norm="model.norm",
        attention="self_attn",
        output_projection="o_proj",
        mlp="mlp",
        attention_contribution="post_attention_layernorm",
        mlp_contribution="post_feedforward_layernorm",
        logit_softcap="final_logit_softcapping",
    )


FAMILIES: tuple[Family, ...] = (
    _llama_like("Llama", "llama"),
    _llama_like("Qwen2", "qwen2"),
    _gemma_with_post_norms("Gemma 2", "gemma2"),
    _gemma_with_post_norms("Gemma 3", "gemma3_text"),
    Family(
        name="GPT-2",
        model_types=("gpt2",),
        layers="transformer.h",
        final_norm="transformer.ln_f",
        attention="attn",
        output_projection="c_proj",
        mlp="mlp",
        attention_contribution="attn",
        mlp_contribution="mlp",
    ),
    Family(
        name="GPT-NeoX",
        model_types=("gpt_neox",),
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attention="attention",
        output_projection="dense",
        mlp="mlp",
        attention_contribution="attention",
        mlp_contribution="mlp",
    ),
)


def family_of(config: PretrainedConfig) -> Family:
    """The table's entry for a configuration.

    Raises:
        ModelError: no entry, or a variant whose forward pass the entry does not describe.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{config.model_type!r} is an encoder-decoder. assay works on decoder-only causal language models."
        )
    for family in FAMILIES:
        if config.model_type in family.model_types:
            break
    else:
        supported = ", ".join(f"{family.name} ({', '.join(family.model_types)})" for family in FAMILIES)
        raise ModelError(f"Architecture {config.model_type!r} is not supported. Supported: {supported}.")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError("This model attends in both directions; assay needs causal attention.")
    if getattr(config, "add_cross_attention", False):
        raise ModelError("This model has cross-attention layers; assay works on decoder-only models.")
    return family
