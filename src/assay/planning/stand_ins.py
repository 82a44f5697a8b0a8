"""Models that stand in for one whose weights are not loaded.

The *outline* has all of its shapes and no numbers at all. The *shadow* has all of its layers, but only a few heads
and neurons in each, so that what a method runs there for one of them is what it would run on the model. The *slice* is
a few of its layers at full width, with random weights, so that a second there is a second of the model.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from assay.errors import ModelError
from assay.model import Model
from assay.model.catalogue import CATALOGUE
from assay.model.families import family_of
from assay.model.quiet import quiet_transformers
from assay.model.wheels import dequantised_folder
from assay.planning.made_up import word_tokenizer

HEADS, WIDTH = 4, 32
"""Of the shadow: heads of a layer (of keys and values half as many, where they are shared), and the residual stream."""
FEW_WORDS = 1024


def read_configuration(source: str, revision: str | None = None) -> tuple[PretrainedConfig, Any]:
    """Configuration and tokenizer (None if there is none) of a short name, folder or hub id.

    Raises:
        ModelError: no configuration there, or an architecture that assay refuses.
    """
    entry = CATALOGUE.get(source)
    location: str | Path = Path(source).expanduser()
    if entry is not None:
        location = entry.folder or dequantised_folder(entry)
    elif not Path(location).exists():
        if source.count("/") != 1 or source.startswith((".", "~", "/")):
            raise ModelError(f"There is no model {source!r}: no folder with a config.json, no short name, no hub id.")
        location = source
    if isinstance(location, Path) and not (location / "config.json").is_file():
        raise ModelError(f"{location} has no config.json. Planning reads a Hugging Face folder or hub id.")
    options: dict[str, Any] = {"revision": revision} if isinstance(location, str) and revision else {}
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(location, **options)
        except Exception as error:  # readers of many formats raise whatever they like
            reason = " ".join(str(error).split())[:300]
            raise ModelError(f"The configuration of {source!r} cannot be read: {reason}") from error
        family_of(config)
        try:
            tokenizer = AutoTokenizer.from_pretrained(location, **options)
        except Exception:  # there may be none: a plan can do without
            tokenizer = None
    if getattr(config, "quantization_config", None) is not None:
        config = deepcopy(config)
        del config.quantization_config
    return config, tokenizer


def outline(config: PretrainedConfig, name: str, dtype: torch.dtype) -> Model:
    """The model's shapes, without memory for them."""
    with torch.device("meta"):
        return _build(config, None, name, dtype)


def shadow(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str) -> Model:
    """As many layers; of heads and neurons two and a few, each a few numbers wide."""
    small = deepcopy(config)
    grouped = (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) < config.num_attention_heads
    changes = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2 if grouped else HEADS,
        "head_dim": WIDTH // HEADS,
        "intermediate_size": WIDTH,
        "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": WIDTH,
        "word_embed_proj_dim": WIDTH,
        "ffn_dim": WIDTH,
    }
    for entry, value in changes.items():
        if getattr(small, entry, None) is not None:
            setattr(small, entry, value)
    small.vocab_size = max(len(tokenizer), FEW_WORDS)
    _forget_special_tokens(small)
    return _build(small, tokenizer, name, torch.float32)


def slice_of(config: PretrainedConfig, layers: int, dtype: torch.dtype, device: torch.device) -> Model:
    """The first layers at full width, with random weights; its prompts are those of `made_up`."""
    few = deepcopy(config)
    few.num_hidden_layers = min(layers, few.num_hidden_layers)
    for entry in ("layer_types", "no_rope_layers", "mlp_only_layers", "moe_layers"):
        listed = getattr(few, entry, None)
        if isinstance(listed, list) and len(listed) == config.num_hidden_layers:
            setattr(few, entry, listed[: few.num_hidden_layers])
    _forget_special_tokens(few)
    model = _build(few, word_tokenizer(), "a slice", dtype)
    model.hf.to(device)
    return model


def _forget_special_tokens(config: PretrainedConfig) -> None:
    for entry in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(config, entry, None) is not None:
            setattr(config, entry, None)


def _build(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None, name: str, dtype: torch.dtype) -> Model:
    with quiet_transformers():
        try:
            hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
        except Exception as error:  # a configuration may say anything
            reason = " ".join(str(error).split())[:300]
            raise ModelError(f"No model can be made of the configuration of {name}: {reason}") from error
    return Model(hf.eval(), tokenizer, name=name)
