"""GPT-2 with weights written by hand.

The residual stream is cut into named spaces of one-hot codes: ``token``, ``position``, and whatever heads and MLPs
write to. One last coordinate balances all others, so that every stream has mean 0 and a layer norm only divides. With a
large epsilon it divides by a constant; then the model is what its matrices say. Behind a small one norms act as they
do. Faint noise in every matrix stands for all that a trained model does besides.

Axes: D d_model, r width of a head's code.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from assay.model import Model
from assay.model.loading import load

NEARLY_LINEAR = 1e6
"""Of a layer norm: epsilon that no stream's variance comes near."""
NOISE = 0.01


class HandWritten:
    """A GPT-2 whose parts are set one by one; all else is 0 but for the noise.

    Args:
        words: the vocabulary.
        positions: longest prompt.
        spaces: name and width of what the stream holds besides tokens and positions.
        hidden: neurons of each MLP.
        epsilon: of all layer norms.
    """

    def __init__(
        self,
        words: list[str],
        positions: int,
        layers: int,
        heads: int,
        spaces: Mapping[str, int],
        *,
        hidden: int = 8,
        epsilon: float = NEARLY_LINEAR,
    ) -> None:
        self.words, self.heads, self.epsilon = words, heads, epsilon
        widths = {"token": len(words), "position": positions, **spaces}
        ends = torch.tensor(list(widths.values())).cumsum(0).tolist()
        self.spaces = {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}
        self.width = -(-max(ends[-1] + 1, heads * max(len(words), positions)) // heads)
        """Of a head."""
        config = GPT2Config(
            vocab_size=len(words), n_positions=positions, n_embd=heads * self.width, n_layer=layers, n_head=heads,
            n_inner=hidden, activation_function="relu", layer_norm_epsilon=epsilon, tie_word_embeddings=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        self.hf = GPT2LMHeadModel(config).double().eval()
        for parameter in self.hf.parameters():
            parameter.requires_grad_(False).zero_()
        generator = torch.Generator().manual_seed(0)
        for block in self.hf.transformer.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
                part.weight.normal_(0, NOISE, generator=generator)
        self.hf.transformer.wte.weight[:, self.spaces["token"]] = torch.eye(len(words)).double()
        self.hf.transformer.wpe.weight[:, self.spaces["position"]] = torch.eye(positions).double()

    def read(self, space: str, matrix: Tensor | None = None) -> Tensor:
        """(D, r) what a head makes of a space: its code, or ``matrix`` (codes, r) of it."""
        where = self.spaces[space]
        width = where.stop - where.start
        found = torch.zeros(self.hf.config.n_embd, self.width, dtype=torch.float64)
        codes = torch.eye(width) if matrix is None else matrix
        found[where, : codes.shape[1]] = codes.double()
        return found

    def set_head(self, layer: int, head: int, query: Tensor, key: Tensor, value: Tensor, to: str, gain: float) -> None:
        """Attend where query and key codes agree, by ``gain``, and write the value's code to a space."""
        attention, every = self.hf.transformer.h[layer].attn, self.hf.config.n_embd
        mine = slice(head * self.width, (head + 1) * self.width)
        for part, matrix in enumerate((query * gain * self.width**0.5, key, value)):
            attention.c_attn.weight[:, part * every + mine.start : part * every + mine.stop] += matrix
        where = self.spaces[to]
        attention.c_proj.weight[mine, where] += torch.eye(self.width, where.stop - where.start).double()

    def set_neuron(self, layer: int, neuron: int, reads: Mapping[tuple[str, int], float], bias: float,
                   writes: Mapping[tuple[str, int], float]) -> None:  # fmt: skip
        """relu(reads . stream + bias), times what it writes."""
        mlp = self.hf.transformer.h[layer].mlp
        for (space, code), weight in reads.items():
            mlp.c_fc.weight[self.spaces[space].start + code, neuron] = weight
        mlp.c_fc.bias[neuron] = bias
        for (space, code), weight in writes.items():
            mlp.c_proj.weight[neuron, self.spaces[space].start + code] = weight

    def finished(self, name: str, gain: float) -> Model:
        """The model, its logits being ``gain`` times the space ``out``."""
        hf, transformer = self.hf, self.hf.transformer
        hf.lm_head.weight[:, self.spaces["out"]] = gain * torch.eye(len(self.words)).double()
        writers = [transformer.wte.weight, transformer.wpe.weight]
        for block in transformer.h:
            writers += [block.attn.c_proj.weight, block.mlp.c_proj.weight]
        for weight in writers:
            weight[:, -1] = -weight[:, :-1].sum(1)
        # A token's and a position's code, and what balances them: their sum of squares, where norms act.
        first = (6 / hf.config.n_embd + self.epsilon) ** 0.5
        for block in transformer.h:
            for norm in (block.ln_1, block.ln_2):
                norm.weight.fill_(first)
        transformer.ln_f.weight.fill_(first)
        vocabulary = {word: number for number, word in enumerate(self.words)}
        tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=self.words[0]))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        hf.config.name_or_path = hf.name_or_path = name
        return load(hf, PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=self.words[0]))
