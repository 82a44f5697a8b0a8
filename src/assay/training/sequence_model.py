"""The sequence model of Ye (arXiv 2602.01442) as a plain Hugging Face model with a tokenizer.

Decoder-only, pre-norm, 4 layers x 4 heads, d_model 128, d_ff 512, GELU, 104 symbols, untied output,
and no positional embedding: the causal mask alone tells positions apart. GPT-NeoX with zero rotary
dimensions and a sequential residual is exactly that model.
"""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from assay.data.tasks.sequences import END, PAD, START, UNKNOWN, VOCABULARY

TOKEN_IDS = {symbol: number for number, symbol in enumerate(VOCABULARY)}


def build_model() -> GPTNeoXForCausalLM:
    """A freshly initialised model; seed torch before the call."""
    config = GPTNeoXConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_act="gelu",
        max_position_embeddings=64,
        use_parallel_residual=False,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.0},
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=TOKEN_IDS[START],
        eos_token_id=TOKEN_IDS[END],
        pad_token_id=TOKEN_IDS[PAD],
    )
    return GPTNeoXForCausalLM(config)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per space-separated symbol; nothing is added in front or behind."""
    tokenizer = Tokenizer(WordLevel(TOKEN_IDS, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, bos_token=START
    )
