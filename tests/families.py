"""Tiny random models of every supported family, and where a plain hook finds their parts.

The places are written down here again, apart from assay's own table, so that the oracles share nothing with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, PreTrainedTokenizerFast
from transformers.masking_utils import eager_mask

VOCABULARY = 48
LAYERS, HEADS, WIDTH, HIDDEN = 3, 4, 32, 48


@dataclass(frozen=True)
class Tiny:
    """How to build a tiny model, and its modules: all paths but ``layers`` are from one decoder layer."""

    model: str
    config: Callable[[], transformers.PretrainedConfig]
    layers: str = "model.layers"
    output_projection: str = "self_attn.o_proj"
    """Its input holds the head outputs side by side."""
    attention: str = "self_attn"
    """Its output is added to the residual stream, as are the MLP's."""
    mlp: str = "mlp"
    neurons_before: str | None = "mlp.gate_proj"
    """Its output is the neurons before their activation (the first half of it, if ``fused``)."""
    neurons_after: str | None = "mlp.down_proj"
    """Its input is the neurons after activation and gate."""
    fused: bool = False
    multiplier: float = 1.0
    parallel: bool = False

    def build(self) -> PreTrainedModel:
        return getattr(transformers, self.model)(self.config())


def config(name: str, **entries: object) -> Callable[[], transformers.PretrainedConfig]:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": 32,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "attention_dropout": 0.1,
    }
    return lambda: getattr(transformers, name)(**{**common, **entries})


SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
POST_NORMS = {"attention": "post_attention_layernorm", "mlp": "post_feedforward_layernorm"}
EXPERTS = {"neurons_before": None, "neurons_after": None}
GEMMA = {**SLIDING, "num_key_value_heads": 1, "head_dim": 12, "query_pre_attn_scalar": 10}
NO_ROTARY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.0}
NEOX = {
    "layers": "gpt_neox.layers",
    "output_projection": "attention.dense",
    "attention": "attention",
    "neurons_before": "mlp.dense_h_to_4h",
    "neurons_after": "mlp.dense_4h_to_h",
}

TINY: dict[str, Tiny] = {
    "llama": Tiny("LlamaForCausalLM", config("LlamaConfig")),
    "llama-tied-biased": Tiny(
        "LlamaForCausalLM",
        config("LlamaConfig", num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    ),
    "llama-wide-heads": Tiny("LlamaForCausalLM", config("LlamaConfig", num_attention_heads=2, num_key_value_heads=1,
                                                        head_dim=14)),
    "mistral": Tiny("MistralForCausalLM", config("MistralConfig", sliding_window=3)),
    "mixtral": Tiny(
        "MixtralForCausalLM", config("MixtralConfig", num_local_experts=4, num_experts_per_tok=2), **EXPERTS
    ),
    "qwen2": Tiny("Qwen2ForCausalLM", config("Qwen2Config", num_key_value_heads=1)),
    "qwen3": Tiny("Qwen3ForCausalLM", config("Qwen3Config", head_dim=12)),
    "qwen3-moe": Tiny(
        "Qwen3MoeForCausalLM",
        config("Qwen3MoeConfig", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
               norm_topk_prob=True, mlp_only_layers=[1]),
        **EXPERTS,
    ),
    "gemma": Tiny("GemmaForCausalLM", config("GemmaConfig", num_key_value_heads=1, head_dim=12)),
    "gemma2": Tiny(
        "Gemma2ForCausalLM",
        config("Gemma2Config", **GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=2.0),
        **POST_NORMS,
    ),
    "gemma3": Tiny("Gemma3ForCausalLM", config("Gemma3TextConfig", **GEMMA), **POST_NORMS),
    "phi": Tiny(
        "PhiForCausalLM",
        config("PhiConfig", resid_pdrop=0.1, qk_layernorm=True,
               rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        output_projection="self_attn.dense",
        neurons_before="mlp.fc1",
        neurons_after="mlp.fc2",
        parallel=True,
    ),
    "phi3": Tiny(
        "Phi3ForCausalLM", config("Phi3Config", resid_pdrop=0.1), neurons_before="mlp.gate_up_proj", fused=True
    ),
    "olmo": Tiny("OlmoForCausalLM", config("OlmoConfig", clip_qkv=2.0)),
    "olmo2": Tiny("Olmo2ForCausalLM", config("Olmo2Config"), **POST_NORMS),
    "olmo3": Tiny("Olmo3ForCausalLM", config("Olmo3Config", **SLIDING), **POST_NORMS),
    "granite": Tiny(
        "GraniteForCausalLM",
        config("GraniteConfig", residual_multiplier=0.4, embedding_multiplier=3.0, attention_multiplier=0.3,
               logits_scaling=1.7),
        multiplier=0.4,
    ),
    "cohere": Tiny("CohereForCausalLM", config("CohereConfig", logit_scale=0.3, use_qk_norm=True), parallel=True),
    "cohere2": Tiny("Cohere2ForCausalLM", config("Cohere2Config", logit_scale=0.3, **SLIDING), parallel=True),
    "stablelm": Tiny(
        "StableLmForCausalLM", config("StableLmConfig", qk_layernorm=True, use_qkv_bias=True, hidden_dropout=0.1)
    ),
    "stablelm-parallel": Tiny(
        "StableLmForCausalLM", config("StableLmConfig", use_parallel_residual=True), parallel=True
    ),
    "starcoder2": Tiny(
        "Starcoder2ForCausalLM", config("Starcoder2Config", residual_dropout=0.1, sliding_window=3),
        neurons_before="mlp.c_fc", neurons_after="mlp.c_proj",
    ),
    "nemotron": Tiny("NemotronForCausalLM", config("NemotronConfig", head_dim=8), neurons_before="mlp.up_proj"),
    "llama4": Tiny(
        "Llama4ForCausalLM",
        config("Llama4TextConfig", intermediate_size=24, intermediate_size_mlp=HIDDEN, head_dim=8, num_local_experts=2,
               num_experts_per_tok=1, moe_layers=[1], no_rope_layers=[1, 0, 1], floor_scale=2, attn_scale=0.5,
               attention_chunk_size=4),
        mlp="feed_forward",
        **EXPERTS,
    ),
    "gpt-oss": Tiny(
        "GptOssForCausalLM",
        config("GptOssConfig", **SLIDING, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
               rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        **EXPERTS,
    ),
    "gpt2": Tiny(
        "GPT2LMHeadModel",
        config("GPT2Config", n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=32),
        layers="transformer.h",
        output_projection="attn.c_proj",
        attention="attn",
        neurons_before="mlp.c_fc",
        neurons_after="mlp.c_proj",
    ),
    "gpt-neox": Tiny("GPTNeoXForCausalLM", config("GPTNeoXConfig", hidden_dropout=0.1), parallel=True, **NEOX),
    "gpt-neox-sequential": Tiny(
        "GPTNeoXForCausalLM",
        config("GPTNeoXConfig", use_parallel_residual=False, rope_parameters=NO_ROTARY),
        **NEOX,
    ),
    "opt": Tiny(
        "OPTForCausalLM",
        config("OPTConfig", ffn_dim=HIDDEN, word_embed_proj_dim=20, activation_function="gelu", dropout=0.1),
        layers="model.decoder.layers",
        output_projection="self_attn.out_proj",
        mlp="fc2",
        neurons_before="fc1",
        neurons_after="fc2",
    ),
}  # fmt: skip


def tiny_model(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A random model whose attention is far from uniform and whose biases and norm weights matter."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    torch.manual_seed(0)
    model = TINY[name].build().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if not torch.isfinite(parameter).all() or "experts" in parameter_name:
                parameter.zero_()  # some families leave their experts uninitialised
            parameter.add_(noise * (0.3 if parameter.ndim == 1 else 0.25))
            if "embed" in parameter_name or "wte" in parameter_name:
                parameter.mul_(2)
    if dtype == torch.float64:
        model.set_attn_implementation("oracle")
        if model._can_set_experts_implementation():
            model.set_experts_implementation("eager")  # the default one has no float64
    return model.to(dtype)


CHANGES: dict[int, list[Callable]] = {}
"""What an oracle does to the queries, keys and values of each layer."""


@contextmanager
def attention_inputs(model: PreTrainedModel, layer: int, change: Callable):
    """Pass queries, keys and values of one layer, (B, heads, T, D) each, through ``change``; may be nested."""
    previous = model.config._attn_implementation
    model.set_attn_implementation("oracle")
    CHANGES.setdefault(layer, []).append(change)
    try:
        yield
    finally:
        CHANGES[layer].remove(change)
        model.set_attn_implementation(previous)


def _oracle_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **_):
    """Textbook attention in the inputs' own precision; Hugging Face's softmax runs in float32 at best."""
    for change in CHANGES.get(module.layer_idx, ()):
        query, key, value = change(query, key, value)
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.exp(scores + attention_mask)
    total = weights.sum(-1, keepdim=True)
    if s_aux is not None:
        total = total + torch.exp(s_aux).view(1, -1, 1, 1)
    pattern = weights / total
    return (pattern @ value).transpose(1, 2), pattern


AttentionInterface.register("oracle", _oracle_attention)
AttentionMaskInterface.register("oracle", eager_mask)


def keep_float64_in_transformers() -> None:
    """Many families cast norms, routers and rotations to float32; an oracle in float64 needs the same formulas without.

    Only calls made from transformers' own code are changed, and only for float64 tensors.
    """

    def from_transformers() -> bool:
        return sys._getframe(2).f_globals.get("__name__", "").startswith("transformers.models")

    to, as_float, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def patched_to(self, *args, **kwargs):
        if self.dtype == torch.float64 and torch.float32 in (*args, *kwargs.values()) and from_transformers():
            return self
        return to(self, *args, **kwargs)

    def patched_float(self, *args, **kwargs):
        return self if self.dtype == torch.float64 and from_transformers() else as_float(self, *args, **kwargs)

    def patched_softmax(input, *args, **kwargs):  # noqa: A002
        if input.dtype == torch.float64 and from_transformers():
            kwargs.pop("dtype", None)
        return softmax(input, *args, **kwargs)

    torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = patched_to, patched_float, patched_softmax


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words w0 .. w47, one token each."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")
