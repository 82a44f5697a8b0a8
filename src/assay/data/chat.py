"""Prompts as a chat model meets them: rendered through the tokenizer's own template."""

from __future__ import annotations

from dataclasses import replace

from jinja2 import TemplateError

from assay.data.pairs import PromptPairs
from assay.errors import DataError, OptionError
from assay.model import Model


def as_chat(model: Model, pairs: PromptPairs) -> PromptPairs:
    """Both prompts of each pair as a user's message, up to where the assistant's answer begins.

    Raises:
        OptionError: the model's tokenizer has no chat template.
        DataError: the template cannot be rendered.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not tokenizer.chat_template:
        raise OptionError(f"{model.name} has no chat template, so --chat does not apply. Leave it out.")

    def render(text: str) -> str:
        message = [{"role": "user", "content": text}]
        return str(tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))

    try:
        rendered = tuple(replace(pair, clean=render(pair.clean), corrupted=render(pair.corrupted)) for pair in pairs)
    except (TemplateError, ValueError, TypeError) as error:
        raise DataError(f"The chat template of {model.name} cannot be rendered: {error}. Leave --chat out.") from error
    return PromptPairs(rendered, pairs.task, pairs.metric, pairs.options)
