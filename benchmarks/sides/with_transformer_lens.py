"""The side of TransformerLens: its bridge over the same folder, its own patching functions.

The bridge as booted computes what Hugging Face's model computes: no folded norms, no centred weights
(``enable_compatibility_mode`` is not called). Token ids go in as they are, so nothing is prepended.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Any

import pandas as pd
import torch
from serve import Group, Run, Values, empty, groups_of, serve
from torch import Tensor
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge

SITES = {"heads": ("hook_z", patching.get_act_patch_attn_head_out_all_pos, ("layer", "head")),
         "residual-pre": ("hook_resid_pre", patching.get_act_patch_resid_pre, ("layer", "pos")),
         "mlps": ("hook_mlp_out", None, ())}  # fmt: skip


def prepare(job: dict[str, Any]) -> Run:
    bridge = TransformerBridge.boot_transformers(job["folder"], device="cpu", dtype=torch.float32)
    bridge.requires_grad_(False)
    groups = groups_of(job)

    @torch.no_grad()
    def patches() -> tuple[Values, float]:
        site = job["site"]
        hook, patch_all, axes = SITES[site]
        effects = empty(job, len(job["patches"]))
        index = pd.DataFrame(job["patches"], columns=list(axes))
        once = 0.0
        for group in groups:
            began = time.perf_counter()
            _, cache = bridge.run_with_cache(group.clean, names_filter=lambda name: name.endswith(hook))
            base = group.metric(bridge(group.corrupted))
            once += time.perf_counter() - began
            result = patch_all(
                bridge, group.corrupted, cache, group.metric, index_axis_names=None, index_df=index, reduce="none"
            )
            effects[:, group.examples] = (result.values - base).numpy()
        return {f"activation-patching/{site}": effects}, once

    def attribution() -> tuple[Values, float]:
        units = {"heads": job["n_heads"], "mlps": 1}
        names = {
            (site, layer): f"blocks.{layer}.{'attn.' if site == 'heads' else ''}{SITES[site][0]}"
            for site in job["sites"] for layer in range(job["n_layers"])
        }  # fmt: skip
        wanted = set(names.values())
        values = {site: empty(job, job["n_layers"] * units[site]) for site in job["sites"]}
        for group in groups:
            with torch.no_grad():
                _, source = bridge.run_with_cache(group.clean, names_filter=lambda name: name in wanted)
            base, gradients = _forward_and_backward(bridge, group, wanted)
            for (site, layer), name in names.items():
                product = (source[name] - base[name]) * gradients[name]
                per_unit = product.sum(1).reshape(len(group.examples), units[site], -1).sum(-1)
                first = layer * units[site]
                values[site][first : first + units[site], group.examples] = per_unit.T.numpy()
        return {f"attribution-patching/{site}": found for site, found in values.items()}, 0.0

    return {"patches": patches, "attribution": attribution}[job["work"]]


def _forward_and_backward(
    bridge: TransformerBridge, group: Group, names: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Activations and gradients of the metric at the hooks, on the corrupted prompts."""
    kept: dict[str, dict[str, Tensor]] = {"forward": {}, "backward": {}}

    def keep(value: Tensor, hook: object, way: str, name: str) -> None:
        kept[way][name] = value.detach()

    with bridge.hooks(
        fwd_hooks=[
            ("hook_embed", lambda value, hook: value.requires_grad_(True)),
            *((name, partial(keep, way="forward", name=name)) for name in names),
        ],
        bwd_hooks=[(name, partial(keep, way="backward", name=name)) for name in names],
    ):
        group.metric(bridge(group.corrupted)).sum().backward()
    return kept["forward"], kept["backward"]


if __name__ == "__main__":
    serve(prepare)
