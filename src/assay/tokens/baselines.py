"""What a token is compared with: the input that stands for its absence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.data.encoding import prompt_ids, tokenizer_of
from assay.errors import DataError, OptionError
from assay.model import Model
from assay.tokens.questions import Asked
from assay.tokens.runs import embeddings_of

DEFAULT = "space"
NAMED = ("space", "pad", "mean")
AT_ONCE = 4096


@dataclass(frozen=True)
class Replacement:
    """What each token of a prompt is replaced by."""

    embeddings: Tensor
    """(T, M), or (1, M) for the same everywhere."""
    shown: str


def require_baseline(name: object) -> None:
    """Refuse what can be no baseline of any model.

    Raises:
        OptionError: no string, an empty one, or none that can be written down.
    """
    if not isinstance(name, str):
        raise OptionError(f"The baseline must be {', '.join(NAMED)}, or a text, not {name!r:.80}.")
    if not name:
        raise OptionError(f"--baseline is empty. Give {', '.join(NAMED)}, or a text.")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise OptionError("The baseline holds half a surrogate pair, which is not text.") from error


class Baseline:
    """A baseline by name, or by a text.

    Args:
        name: ``space``, ``pad`` (the tokenizer's padding token), ``mean`` (of all embeddings, each token counted once),
            or a text: one token, which stands everywhere, or as many as the prompt has.

    Raises:
        OptionError: the tokenizer has no such token, or the name is no text.
    """

    def __init__(self, model: Model, name: str) -> None:
        require_baseline(name)
        self.model, self.name = model, name
        self._everywhere: Replacement | None = None
        if name == "mean":
            self._everywhere = Replacement(_mean(model), "the mean embedding")
        elif name in NAMED:
            token = _space(model) if name == "space" else _pad(model)
            self._everywhere = Replacement(embeddings_of(model, [token]), f"{_show(model, token)} ({name})")
        else:
            ids = tokenizer_of(model)(name, add_special_tokens=False)["input_ids"]
            if len(ids) == 1:
                self._everywhere = Replacement(embeddings_of(model, _known(model, ids, name)), _show(model, ids[0]))

    def of(self, asked: Asked) -> Replacement:
        """The replacement for a prompt's tokens.

        Raises:
            DataError: a baseline text of another number of tokens.
        """
        if self._everywhere is not None:
            return self._everywhere
        ids = prompt_ids(tokenizer_of(self.model), self.name)
        if len(ids) != len(asked.prompt):
            shown = " ".join(f"[{_text(self.model, token)}]" for token in ids)
            raise DataError(
                f"{asked.question.id}: the baseline is {len(ids)} tokens, the text {len(asked.prompt)}. Give a "
                f"baseline of one token or of as many as the text has, or one of {', '.join(NAMED)}.\n"
                f"  baseline: {shown}\n"
                f"  text:     {' '.join(f'[{_text(self.model, token)}]' for token in asked.prompt)}"
            )
        return Replacement(embeddings_of(self.model, _known(self.model, ids, self.name)), repr(self.name))


def _known(model: Model, ids: list[int], text: str) -> list[int]:
    tokenizer = tokenizer_of(model)
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in ids and str(tokenizer.unk_token) not in text:
        raise OptionError(f"The baseline {text!r} has words that the tokenizer of {model.name} does not know.")
    return ids


def _space(model: Model) -> int:
    tokenizer = tokenizer_of(model)
    ids = tokenizer(" ", add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise OptionError(
            f"The tokenizer of {model.name} has no token for a space. Use --baseline mean, pad or a word of its "
            "vocabulary (in Python: baseline=)."
        )
    return int(ids[0])


def _pad(model: Model) -> int:
    token = tokenizer_of(model).pad_token_id
    if token is None:
        raise OptionError(f"The tokenizer of {model.name} has no padding token. Use --baseline space or mean.")
    if int(token) >= model.vocab_size:
        raise OptionError(f"The padding token of {model.name} has no embedding. Use --baseline space or mean.")
    return int(token)


def _mean(model: Model) -> Tensor:
    """(1, M), summed in float64."""
    total = torch.zeros((), dtype=torch.float64)
    dtype = model.dtype
    for first in range(0, model.vocab_size, AT_ONCE):
        part = embeddings_of(model, range(first, min(first + AT_ONCE, model.vocab_size)))
        dtype, total = part.dtype, total + part.double().sum(0).cpu()
    return (total / model.vocab_size).to(model.device, dtype).unsqueeze(0)


def _text(model: Model, token: int) -> str:
    return str(tokenizer_of(model).convert_ids_to_tokens(token))


def _show(model: Model, token: int) -> str:
    return f"the token {tokenizer_of(model).decode([token])!r}"
