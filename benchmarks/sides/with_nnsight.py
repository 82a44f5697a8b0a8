"""The side of nnsight: the same patches as traces, all prompts of one length in one trace."""

from __future__ import annotations

import time
from typing import Any

import nnsight
import torch
from serve import Run, Values, empty, groups_of, serve


def prepare(job: dict[str, Any]) -> Run:
    # The task is given because it is not inferred offline; token ids go in as they are, so nothing is prepended.
    model = nnsight.TransformersModel(job["folder"], task="text-generation", dispatch=True, dtype=torch.float32)
    model.requires_grad_(False)
    groups, width = groups_of(job), job["width"]

    @torch.no_grad()
    def run() -> tuple[Values, float]:
        effects = empty(job, len(job["patches"]))
        once = 0.0
        for group in groups:
            began = time.perf_counter()
            with model.trace({"input_ids": group.clean}, use_cache=False, logits_to_keep=1):
                clean = nnsight.save([])
                for layer in model.model.layers:
                    clean.append(layer.self_attn.o_proj.input)
            with model.trace({"input_ids": group.corrupted}, use_cache=False, logits_to_keep=1):
                logits = model.lm_head.output.save()
            base = group.metric(logits)
            once += time.perf_counter() - began
            for number, (layer, head) in enumerate(job["patches"]):
                mine = slice(head * width, (head + 1) * width)
                with model.trace({"input_ids": group.corrupted}, use_cache=False, logits_to_keep=1):
                    model.model.layers[layer].self_attn.o_proj.input[..., mine] = clean[layer][..., mine]
                    logits = model.lm_head.output.save()
                effects[number, group.examples] = (group.metric(logits) - base).numpy()
        return {"activation-patching/heads": effects}, once

    return run


if __name__ == "__main__":
    serve(prepare)
