"""The sequence model of Ye (arXiv 2602.01442) as a plain Hugging Face model with a tokenizer.

Decoder-only, pre-norm, 4 layers x 4 heads, d_model 128, d_ff 512, GELU, 104 symbols, untied output,
and no positional embedding: the causal mask alone tells positions apart. GPT-NeoX with zero rotary
dimensions and a sequential residual is exactly that model; with all dimensions rotated it is the one
with rotary positions. GPT-2 is the one with learned positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from assay.data.tasks.sequences import END, PAD, START, UNKNOWN, VOCABULARY

TOKEN_IDS = {symbol: number for number, symbol in enumerate(VOCABULARY)}
LONGEST_LINE = 64


def build_model(
    vocabulary: Sequence[str] = VOCABULARY,
    positions: str = "none",
    layers: int = 4,
    heads: int = 4,
    width: int = 128,
) -> GPTNeoXForCausalLM | GPT2LMHeadModel:
    """A freshly initialised model; seed torch before the call.

    Args:
        positions: ``none``, ``rotary`` or ``learned``.
        width: of the residual stream; neurons are four times as many.
    """
    ids = {symbol: number for number, symbol in enumerate(vocabulary)}
    special = {"bos_token_id": ids.get(START), "eos_token_id": ids.get(END), "pad_token_id": ids[PAD]}
    if positions == "learned":
        config = GPT2Config(
            vocab_size=len(vocabulary),
            n_embd=width,
            n_layer=layers,
            n_head=heads,
            n_inner=4 * width,
            n_positions=LONGEST_LINE,
            activation_function="gelu",
            tie_word_embeddings=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **special,
        )
        return GPT2LMHeadModel(config)
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=len(vocabulary),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_act="gelu",
            max_position_embeddings=LONGEST_LINE,
            use_parallel_residual=False,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0 if positions == "rotary" else 0.0,
            },
            hidden_dropout=0.0,
            attention_dropout=0.0,
            **special,
        )
    )


def build_tokenizer(vocabulary: Sequence[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token per space-separated symbol; nothing is added in front or behind."""
    ids = {symbol: number for number, symbol in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    special = {"bos_token": START, "eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN}
    known = {name: symbol for name, symbol in special.items() if symbol in ids}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **known)
