"""The side of nnsight: the same patches as traces.

Prompts of one length form a batch, and several heads are patched in one trace, each in an invoke of its own: that is
faster than a trace for each head.
"""

from __future__ import annotations

import time
from typing import Any

import nnsight
import torch
from serve import Run, Values, empty, groups_of, serve

HEADS_AT_ONCE = 16


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
            for first in range(0, len(job["patches"]), HEADS_AT_ONCE):
                patches = job["patches"][first : first + HEADS_AT_ONCE]
                with model.trace(use_cache=False, logits_to_keep=1) as tracer:
                    found = nnsight.save([])
                    for layer, head in patches:
                        with tracer.invoke({"input_ids": group.corrupted}):
                            mine = slice(head * width, (head + 1) * width)
                            model.model.layers[layer].self_attn.o_proj.input[..., mine] = clean[layer][..., mine]
                            found.append(group.metric(model.lm_head.output))
                effects[first : first + len(patches), group.examples] = (torch.stack(list(found)) - base).numpy()
        return {"activation-patching/heads": effects}, once

    return run


if __name__ == "__main__":
    serve(prepare)
