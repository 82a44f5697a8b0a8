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

    Paths are dotted: ``layers``, ``final_norm`` and ``after_final_norm`` from the causal LM,
    ``output_projection`` from the attention module, the others from one decoder layer. The defaults are
    Llama's, which most families follow. ``*_entry`` names an entry of the configuration.
    """

    name: str
    model_types: tuple[str, ...]
    layers: str = "model.layers"
    final_norm: str = "model.norm"
    attention: str = "self_attn"
    output_projection: str = "o_proj"
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """From the attention module: what makes queries, keys and values of its input, or one that makes all three."""
    projection_is_by_head: bool = False
    """One that makes all three holds them head by head; otherwise all queries come first, then all keys."""
    mlp: str = "mlp"
    attention_contribution: str = "self_attn"
    """Module whose output is added to the residual stream: the attention itself, or its post-norm."""
    mlp_contribution: str = "mlp"
    neuron_input: str = "mlp.gate_proj"
    """Module whose output is the neurons before their activation function (not in layers of experts)."""
    neuron_output: str = "mlp.down_proj"
    """Module whose input is the neurons after activation and gate."""
    neuron_input_is_fused: bool = False
    """``neuron_input`` holds gate and up side by side; the gate comes first."""
    gated: bool = True
    """MLPs multiply what ``neuron_input`` gives, after activation, with a second projection of their input."""
    experts: str = "mlp.experts"
    """In layers that have any; ``router`` weighs them."""
    router: str = "mlp.gate"
    shared_neuron_output: str | None = None
    """The ``neuron_output`` of an expert that all tokens pass through, beside the others."""
    parallel: bool | str = False
    """MLP and attention read the same residual stream; a string names the configuration's entry."""
    residual_multiplier_entry: str | None = None
    """Contributions are multiplied by this before they are added."""
    after_final_norm: str | None = None
    """A projection between final norm and unembedding; absent in some sizes of the family."""
    logit_multiplier_entry: str | None = None
    logit_divisor_entry: str | None = None
    logit_softcap_entry: str | None = None
    """c of ``logits = c * tanh(logits / c)``."""
    counts_positions: bool = False
    """A layer numbers the positions it is given from 0, so none may be left out of a replay."""

    def is_parallel(self, config: PretrainedConfig) -> bool:
        return bool(getattr(config, self.parallel)) if isinstance(self.parallel, str) else self.parallel


def _with_post_norms(name: str, model_type: str, logit_softcap_entry: str | None = None) -> Family:
    """Llama's layout, with each sublayer's output normalised before it is added."""
    return Family(
        name,
        (model_type,),
        attention_contribution="post_attention_layernorm",
        mlp_contribution="post_feedforward_layernorm",
        logit_softcap_entry=logit_softcap_entry,
    )


FAMILIES: tuple[Family, ...] = (
    Family("Llama", ("llama",)),
    Family("Mistral", ("mistral",)),
    Family("Mixtral", ("mixtral",)),
    Family("Qwen2", ("qwen2",)),
    Family("Qwen3", ("qwen3",)),
    Family("Qwen3-MoE", ("qwen3_moe",)),
    Family("Gemma", ("gemma",)),
    _with_post_norms("Gemma 2", "gemma2", logit_softcap_entry="final_logit_softcapping"),
    _with_post_norms("Gemma 3", "gemma3_text", logit_softcap_entry="final_logit_softcapping"),
    Family("OLMo", ("olmo",)),
    _with_post_norms("OLMo 2", "olmo2"),
    _with_post_norms("OLMo 3", "olmo3"),
    Family(
        "Granite",
        ("granite",),
        residual_multiplier_entry="residual_multiplier",
        logit_divisor_entry="logits_scaling",
    ),
    Family("Cohere", ("cohere",), parallel=True, logit_multiplier_entry="logit_scale"),
    Family("Cohere 2", ("cohere2",), parallel=True, logit_multiplier_entry="logit_scale"),
    Family("StableLM", ("stablelm",), parallel="use_parallel_residual"),
    Family("StarCoder2", ("starcoder2",), neuron_input="mlp.c_fc", neuron_output="mlp.c_proj", gated=False),
    Family("Nemotron", ("nemotron",), neuron_input="mlp.up_proj", gated=False),
    Family("gpt-oss", ("gpt_oss",), router="mlp.router"),
    Family(
        "Llama 4",
        ("llama4_text",),
        mlp="feed_forward",
        mlp_contribution="feed_forward",
        neuron_input="feed_forward.gate_proj",
        neuron_output="feed_forward.down_proj",
        experts="feed_forward.experts",
        router="feed_forward.router",
        shared_neuron_output="feed_forward.shared_expert.down_proj",
        counts_positions=True,
    ),
    Family(
        "Phi-3",
        ("phi3",),
        projections=("qkv_proj",),
        neuron_input="mlp.gate_up_proj",
        neuron_input_is_fused=True,
    ),
    Family(
        "Phi",
        ("phi",),
        final_norm="model.final_layernorm",
        output_projection="dense",
        neuron_input="mlp.fc1",
        neuron_output="mlp.fc2",
        gated=False,
        parallel=True,
    ),
    Family(
        "GPT-2",
        ("gpt2",),
        layers="transformer.h",
        final_norm="transformer.ln_f",
        attention="attn",
        output_projection="c_proj",
        projections=("c_attn",),
        attention_contribution="attn",
        neuron_input="mlp.c_fc",
        neuron_output="mlp.c_proj",
        gated=False,
    ),
    Family(
        "GPT-NeoX",
        ("gpt_neox",),
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attention="attention",
        output_projection="dense",
        projections=("query_key_value",),
        projection_is_by_head=True,
        attention_contribution="attention",
        neuron_input="mlp.dense_h_to_4h",
        neuron_output="mlp.dense_4h_to_h",
        gated=False,
        parallel="use_parallel_residual",
    ),
    Family(
        "OPT",
        ("opt",),
        layers="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        output_projection="out_proj",
        mlp="fc2",
        mlp_contribution="fc2",
        neuron_input="fc1",
        neuron_output="fc2",
        gated=False,
        after_final_norm="model.decoder.project_out",
    ),
)

_NO_INTERFACE = "its attention does not go through transformers' attention interface"
_NO_ATTENTION = "some or all of its layers are not attention"
REFUSED: dict[str, str] = {
    "bloom": _NO_INTERFACE,
    "mpt": _NO_INTERFACE,
    "falcon": _NO_INTERFACE,
    "gpt_neo": _NO_INTERFACE,
    "gptj": _NO_INTERFACE,
    "codegen": _NO_INTERFACE,
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "rwkv": _NO_ATTENTION,
    "jamba": _NO_ATTENTION,
    "bamba": _NO_ATTENTION,
    "zamba": _NO_ATTENTION,
    "falcon_h1": _NO_ATTENTION,
    "qwen3_next": "it gates heads after attention, and some of its layers are not attention",
    "gemma3n": "its layers are scaled, take inputs of their own, and share keys and values",
    "gemma3n_text": "its layers are scaled, take inputs of their own, and share keys and values",
    "gemma4": "its layers are scaled, take inputs of their own, and share keys and values",
    "gemma4_text": "its layers are scaled, take inputs of their own, and share keys and values",
}
"""Architectures that would give wrong numbers, and why."""


def family_of(config: PretrainedConfig) -> Family:
    """The table's entry for a configuration.

    Raises:
        ModelError: no entry, or a variant whose forward pass the entry does not describe.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{config.model_type!r} is an encoder-decoder. assay works on decoder-only causal language models."
        )
    if config.model_type in REFUSED:
        raise ModelError(f"Architecture {config.model_type!r} is not supported: {REFUSED[config.model_type]}.")
    for family in FAMILIES:
        if config.model_type in family.model_types:
            break
    else:
        supported = ", ".join(f"{family.name} ({', '.join(family.model_types)})" for family in FAMILIES)
        raise ModelError(f"Architecture {config.model_type!r} is not supported. Supported: {supported}.")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise ModelError("This model attends in both directions; assay needs causal attention.")
    if getattr(config, "add_cross_attention", False):
        raise ModelError("This model has cross-attention layers; assay works on decoder-only models.")
    if config.model_type == "opt" and (not config.do_layer_norm_before or config._remove_final_layer_norm):
        raise ModelError("OPT with layer norms after the sublayers (OPT-350M) is not supported: no residual stream.")
    return family
