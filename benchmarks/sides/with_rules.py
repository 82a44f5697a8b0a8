"""One forward and one backward pass of whole prompts: the model's own, or under backward rules that the job names."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from serve import Run, Values, groups_of, serve
from transformers import AutoModelForCausalLM


def prepare(job: dict[str, Any]) -> Run:
    hf = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=torch.float32).eval().requires_grad_(False)
    (group,) = groups_of(job)
    rules = job["rules"]
    if rules is not None:
        import assay

        model = assay.load(hf)

    def run() -> tuple[Values, float]:
        embeddings = hf.get_input_embeddings()(group.clean).requires_grad_(True)
        with nullcontext() if rules is None else assay.backward_rules(model, rules):
            metric = group.metric(hf(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1).logits)
            (gradient,) = torch.autograd.grad(metric.sum(), embeddings)
        return {"metric": metric.detach().numpy()[None], "gradient": gradient.norm(dim=(1, 2)).numpy()[None]}, 0.0

    return run


if __name__ == "__main__":
    serve(prepare)
