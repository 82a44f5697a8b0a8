"""The side without any library: plain hooks on a Hugging Face model of the Llama architecture.

The shortest honest code: prompts of one length form one batch, the unembedding is read at the last position only,
and weights ask for no gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from serve import Group, Run, Values, empty, groups_of, serve
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


def prepare(job: dict[str, Any]) -> Run:
    model = AutoModelForCausalLM.from_pretrained(job["folder"], dtype=torch.float32).eval().requires_grad_(False)
    plain = Plain(model, job)
    return {"patches": plain.patches, "attribution": plain.attribution, "passes": plain.passes}[job["work"]]


class Plain:
    def __init__(self, model: Any, job: dict[str, Any]) -> None:
        self.model, self.job = model, job
        self.groups = groups_of(job)
        self.layers = model.model.layers

    def metric(self, group: Group, ids: Tensor) -> Tensor:
        return group.metric(self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits)

    def module(self, site: str, layer: int) -> nn.Module:
        """The linear map whose input is the site."""
        block = self.layers[layer]
        return block.self_attn.o_proj if site == "heads" else block.mlp.down_proj

    @contextmanager
    def inputs_to(self, site: str, keep: Callable[[int, Tensor], object]) -> Iterator[None]:
        handles = [
            self.module(site, layer).register_forward_pre_hook(lambda _, args, layer=layer: keep(layer, args[0]))
            for layer in range(len(self.layers))
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def patches(self) -> tuple[Values, float]:
        """Every patch of the job by a forward pass of its own: ``[layer, unit]`` of one site."""
        site, width, patches = self.job["site"], self.job["width"], self.job["patches"]
        effects = empty(self.job, len(patches))
        once = 0.0
        for group in self.groups:
            began = time.perf_counter()
            kept: dict[int, Tensor] = {}
            with self.inputs_to(site, kept.__setitem__):
                self.metric(group, group.clean)
            base = self.metric(group, group.corrupted)
            once += time.perf_counter() - began
            for number, (layer, unit) in enumerate(patches):
                mine = slice(unit * width, (unit + 1) * width)

                def patch(
                    _: object, args: tuple[Tensor], mine: slice = mine, source: Tensor = kept[layer]
                ) -> tuple[Tensor]:
                    changed = args[0].clone()
                    changed[..., mine] = source[..., mine]
                    return (changed,)

                handle = self.module(site, layer).register_forward_pre_hook(patch)
                effects[number, group.examples] = (self.metric(group, group.corrupted) - base).numpy()
                handle.remove()
        return {f"activation-patching/{site}": effects}, once

    def attribution(self) -> tuple[Values, float]:
        """(source - base) . gradient, for the job's sites among heads, neurons and mlps."""
        sites = self.job["sites"]
        widths = {"heads": self.job["width"], "neurons": 1, "mlps": self.job["d_model"]}
        units = {"heads": self.job["n_heads"], "neurons": self.job["d_mlp"], "mlps": 1}
        values = {site: empty(self.job, len(self.layers) * units[site]) for site in sites}
        for group in self.groups:
            source, base = {}, {}
            with torch.no_grad():
                self.run_and_keep(group, group.clean, sites, source)
            with self.grown_from_the_embedding():
                metric = self.run_and_keep(group, group.corrupted, sites, base)
            places = list(base)
            gradients = torch.autograd.grad(metric.sum(), [base[place] for place in places])
            for (site, layer), gradient in zip(places, gradients, strict=True):
                product = (source[site, layer] - base[site, layer]).detach() * gradient
                per_unit = product.sum(1).unflatten(-1, (units[site], widths[site])).sum(-1)
                first = layer * units[site]
                values[site][first : first + units[site], group.examples] = per_unit.T.numpy()
        return {f"attribution-patching/{site}": found for site, found in values.items()}, 0.0

    def run_and_keep(self, group: Group, ids: Tensor, sites: list[str], kept: dict[tuple[str, int], Tensor]) -> Tensor:
        handles = []
        for site in sites:
            for layer, block in enumerate(self.layers):

                def keep(_: object, args: tuple[Tensor], place: tuple[str, int] = (site, layer)) -> None:
                    kept[place] = args[0]

                def keep_output(
                    _: object, args: object, output: Tensor, place: tuple[str, int] = (site, layer)
                ) -> None:
                    kept[place] = output

                if site == "mlps":
                    handles.append(block.mlp.register_forward_hook(keep_output))
                else:
                    handles.append(self.module(site, layer).register_forward_pre_hook(keep))
        try:
            return self.metric(group, ids)
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def grown_from_the_embedding(self) -> Iterator[None]:
        embedding = self.model.get_input_embeddings()
        handle = embedding.register_forward_hook(lambda _, args, output: output.requires_grad_(True))
        try:
            yield
        finally:
            handle.remove()

    def passes(self) -> tuple[Values, float]:
        """One forward pass of each prompt and one backward pass of the corrupted ones, nothing kept."""
        values = np.full((2, len(self.job["rows"])), np.nan)
        for group in self.groups:
            with torch.no_grad():
                values[0, group.examples] = self.metric(group, group.clean).numpy()
            embedded = self.model.get_input_embeddings()(group.corrupted).requires_grad_(True)
            logits = self.model(inputs_embeds=embedded, use_cache=False, logits_to_keep=1).logits
            metric = group.metric(logits)
            torch.autograd.grad(metric.sum(), embedded)
            values[1, group.examples] = metric.detach().numpy()
        return {"metric": values}, 0.0


if __name__ == "__main__":
    serve(prepare)
