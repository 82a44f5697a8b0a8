"""The JSON layout of the relations data (Hernandez et al., arXiv 2308.09124): templates, subjects and objects."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from typing import Any

from transformers import PreTrainedTokenizerBase

from assay.data.complaints import of_each
from assay.data.encoding import prompt_ids
from assay.data.pairs import PromptPair
from assay.errors import DataError, OptionError

ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")


def is_relation(document: Any) -> bool:
    return isinstance(document, dict) and "prompt_templates" in document and "samples" in document


def relation_pairs(
    document: dict[str, Any], file: str, tokenizer: PreTrainedTokenizerBase, template: int, seed: int, n: int | None
) -> tuple[tuple[PromptPair, ...], dict[str, int]]:
    """The first ``n`` pairs, and how many samples before them were dropped, by reason.

    A sample's partner is drawn among those whose prompt has as many tokens and whose object is none of the
    sample's own: its prompt is the corrupted one, its object the wrong answer.

    Raises:
        DataError: a file that is not of this kind, or no sample that has a partner.
        OptionError: no such template.
    """
    text = _template(document, file, template)
    samples = _samples(document, file)
    prompts = [text.replace("{}", subject) for subject, _ in samples]
    lengths = [len(prompt_ids(tokenizer, prompt)) for prompt in prompts]
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    objects: defaultdict[str, set[str]] = defaultdict(set)
    for number, (subject, of_subject) in enumerate(samples):
        by_length[lengths[number]].append(number)
        objects[subject].add(of_subject.casefold())
    draw = random.Random(seed)
    pairs: list[PromptPair] = []
    dropped = 0
    for number, (subject, answer) in enumerate(samples):
        if len(pairs) == n:
            break
        partners = [
            other
            for other in by_length[lengths[number]]
            if samples[other][1].casefold() not in objects[subject]
            and answer.casefold() not in objects[samples[other][0]]
        ]
        if not partners:
            dropped += 1
            continue
        other = draw.choice(partners)
        identifier = f"sample {number + 1} ({subject})"
        pairs.append(PromptPair(prompts[number], prompts[other], f" {answer}", f" {samples[other][1]}", identifier))
    reason = "no partner of the same token length with another object"
    if not pairs:
        raise DataError(f"{file}: none of {len(samples)} samples can be used: {reason}. Add samples.")
    return tuple(pairs), {reason: dropped} if dropped else {}


def _template(document: dict[str, Any], file: str, index: int) -> str:
    listed = [*document["prompt_templates"], *document.get("prompt_templates_zs", ())]
    templates = list(dict.fromkeys(text for text in listed if isinstance(text, str)))
    if not 0 <= index < len(templates):
        shown = "\n".join(f"  {number}: {text!r}" for number, text in enumerate(templates))
        raise OptionError(f"{file} has no template {index}. Choose with --template:\n{shown}")
    text = unescape(templates[index])
    if text.count("{}") != 1:
        raise DataError(f"{file}: template {index} must have the place of the subject, {{}}, once: {text!r}.")
    return text.rstrip()


def _samples(document: dict[str, Any], file: str) -> list[tuple[str, str]]:
    if not isinstance(document["samples"], list) or not document["samples"]:
        raise DataError(f"{file}: samples must be a list of objects with subject and object, and not empty.")

    def texts_of(numbered: tuple[int, Any]) -> tuple[str, str]:
        number, sample = numbered
        subject, of_subject = (sample.get(name) if isinstance(sample, dict) else None for name in ("subject", "object"))
        if not all(isinstance(text, str) and text.strip() for text in (subject, of_subject)):
            raise DataError(f"{file}, sample {number}: needs texts for subject and object, not {json.dumps(sample)}.")
        return unescape(str(subject)).strip(), unescape(str(of_subject)).strip()

    return of_each(texts_of, list(enumerate(document["samples"], 1)), f"samples of {file}")


def unescape(text: str) -> str:
    """``Bras\\u00edlia``, escaped twice when the file was written, as Brasília."""

    def decoded(match: re.Match[str]) -> str:
        return str(json.loads(f'"{match.group()}"'))

    return ESCAPES.sub(decoded, text)
