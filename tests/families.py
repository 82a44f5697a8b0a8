"""Tiny random models of every supported family, and where a plain hook finds their parts.

The paths are written down here again, apart from assay's own table, so that the oracles share nothing with it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.masking_utils import eager_mask

VOCABULARY = 48
LAYERS, HEADS, WIDTH, HIDDEN = 3, 4, 32, 48


@dataclass(frozen=True)
class Tiny:
    build: Callable[[], PreTrainedModel]
    layers: str
    output_projection: str
    """Its input holds the head outputs side by side."""
    mlp_contribution: str
    """Its output is what the MLP adds to the residual stream."""


COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attention_dropout": 0.1,
}
GEMMA = {**COMMON, "num_key_value_heads": 1, "head_dim": 12, "sliding_window": 4, "query_pre_attn_scalar": 10}
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

TINY: dict[str, Tiny] = {
    "llama": Tiny(
        lambda: LlamaForCausalLM(LlamaConfig(**COMMON, num_key_value_heads=2)),
        "model.layers", "self_attn.o_proj", "mlp",
    ),
    "llama-tied-biased": Tiny(
        lambda: LlamaForCausalLM(
            LlamaConfig(**COMMON, num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
        ),
        "model.layers", "self_attn.o_proj", "mlp",
    ),
    "qwen2": Tiny(
        lambda: Qwen2ForCausalLM(Qwen2Config(**COMMON, num_key_value_heads=1)),
        "model.layers", "self_attn.o_proj", "mlp",
    ),
    "gemma2": Tiny(
        lambda: Gemma2ForCausalLM(
            Gemma2Config(
                **GEMMA, layer_types=LAYER_TYPES, attn_logit_softcapping=3.0, final_logit_softcapping=2.0
            )
        ),
        "model.layers", "self_attn.o_proj", "post_feedforward_layernorm",
    ),
    "gemma3": Tiny(
        lambda: Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA, layer_types=LAYER_TYPES)),
        "model.layers", "self_attn.o_proj", "post_feedforward_layernorm",
    ),
    "gpt2": Tiny(
        lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=32,
                bos_token_id=None, eos_token_id=None,
            )
        ),
        "transformer.h", "attn.c_proj", "mlp",
    ),
    "gpt-neox": Tiny(
        lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**COMMON, hidden_dropout=0.1)),
        "gpt_neox.layers", "attention.dense", "mlp",
    ),
    "gpt-neox-sequential": Tiny(
        lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **COMMON,
                use_parallel_residual=False,
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.0},
            )
        ),
        "gpt_neox.layers", "attention.dense", "mlp",
    ),
}  # fmt: skip


def tiny_model(name: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A random model whose attention is far from uniform and whose biases and norm weights matter."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    torch.manual_seed(0)
    model = TINY[name].build().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            is_vector = parameter.ndim == 1
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.3 if is_vector else 0.25))
            if "embed" in parameter_name or "wte" in parameter_name:
                parameter.mul_(2)
    model = model.to(dtype)
    if dtype == torch.float64:
        run_norms_in_float64(model)
        model.set_attn_implementation("oracle")
    return model


def _oracle_attention(_module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
    """Textbook attention in the inputs' own precision; Hugging Face's softmax runs in float32 at best."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    pattern = torch.softmax(scores + attention_mask, dim=-1)
    return (pattern @ value).transpose(1, 2), pattern


AttentionInterface.register("oracle", _oracle_attention)
AttentionMaskInterface.register("oracle", eager_mask)


def run_norms_in_float64(model: PreTrainedModel) -> None:
    """Hugging Face's RMS norms compute in float32 whatever the weights; an oracle needs the same formula without."""
    for module in model.modules():
        if type(module).__name__ in ("LlamaRMSNorm", "Qwen2RMSNorm"):
            module.forward = types.MethodType(_rms_norm, module)
        elif type(module).__name__ in ("Gemma2RMSNorm", "Gemma3RMSNorm"):
            module.forward = types.MethodType(_gemma_rms_norm, module)


def _rms_norm(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def _gemma_rms_norm(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (1 + self.weight) * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words w0 .. w47, one token each."""
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")
