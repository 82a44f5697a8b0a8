"""The side of the EAP-IG package, on HookedTransformer, and of MIB's evaluation on top of it.

Two things of theirs are changed, neither of them a number: ``device='cuda'`` is written into the package, so its source
is copied with ``cpu`` instead; and prompts go in as token ids, since its own tokenising puts a token in front.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from serve import Run, Values, groups_of, serve
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights, convert_llama_weights
from transformers import AutoModelForCausalLM

STREAMS = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "ungroup_grouped_query_attention")


def hooked(folder: str) -> HookedTransformer:
    """The Hugging Face model's weights as they are: no folded norms, no centred weights."""
    hf = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = hf.config
    common = {
        "n_layers": config.num_hidden_layers, "n_heads": config.num_attention_heads, "d_model": config.hidden_size,
        "d_head": config.hidden_size // config.num_attention_heads, "d_vocab": config.vocab_size,
        "n_ctx": min(config.max_position_embeddings, 64), "device": "cpu", "dtype": torch.float32,
    }  # fmt: skip
    if config.model_type == "gpt2":
        cfg = HookedTransformerConfig(
            **common, d_mlp=config.n_inner or 4 * config.n_embd, act_fn=config.activation_function,
            eps=config.layer_norm_epsilon, normalization_type="LN",
        )  # fmt: skip
        state = convert_gpt2_weights(hf, cfg)
        state["pos_embed.W_pos"] = state["pos_embed.W_pos"][: cfg.n_ctx]
    elif config.model_type == "llama":
        cfg = HookedTransformerConfig(
            **common, d_mlp=config.intermediate_size, act_fn="silu", eps=config.rms_norm_eps, normalization_type="RMS",
            positional_embedding_type="rotary", rotary_dim=common["d_head"], final_rms=True, gated_mlp=True,
            rotary_base=int(config.rope_parameters["rope_theta"]), rotary_adjacent_pairs=False,
            n_key_value_heads=config.num_key_value_heads,
        )  # fmt: skip
        state = convert_llama_weights(hf, cfg)
    else:
        raise SystemExit(f"{config.model_type}: only the GPT-2 and Llama architectures are set up here.")
    model = HookedTransformer(cfg)
    model.load_state_dict(state, strict=False)
    for name in STREAMS:
        if name != "ungroup_grouped_query_attention" or cfg.n_key_value_heads is not None:
            setattr(model.cfg, name, True)
    tokens = torch.arange(5).unsqueeze(0)
    with torch.no_grad():
        if not torch.allclose(model(tokens), hf(tokens).logits, atol=1e-3):
            raise SystemExit("HookedTransformer does not give the logits of the Hugging Face model.")
    return model


def package(checkout: str) -> None:
    """Make a checkout of EAP-IG importable, on the CPU."""
    folder = Path(tempfile.mkdtemp(prefix="eap-ig-"))
    shutil.copytree(Path(checkout) / "src" / "eap", folder / "eap")
    for file in (folder / "eap").glob("*.py"):
        file.write_text(file.read_text().replace("'cuda'", "'cpu'"))
    sys.path.insert(0, str(folder))


def given_ids(_: Any, rows: list[list[int]], max_length: int | None = None) -> tuple[Tensor, Tensor, Tensor, int]:
    tokens = torch.tensor(rows)
    return tokens, torch.ones_like(tokens), torch.full((len(tokens),), tokens.shape[1]), tokens.shape[1]


def prepare(job: dict[str, Any]) -> Run:
    package(job["eap_ig"])
    attribute, evaluate, graphs = (
        importlib.import_module(f"eap.{name}") for name in ("attribute", "evaluate", "graph")
    )
    attribute.tokenize_plus = evaluate.tokenize_plus = given_ids
    model = hooked(job["folder"])
    batches = [
        (group.clean.tolist(), group.corrupted.tolist(), torch.stack([group.answer, group.wrong], 1))
        for group in groups_of(job)
    ]

    def difference(logits: Tensor, _: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
        each = torch.arange(len(labels))
        last = logits[each, lengths - 1]
        return last[each, labels[:, 0]] - last[each, labels[:, 1]]

    def loss(*given: Tensor) -> Tensor:
        # A sum, since the package divides by the number of examples once more than a mean would bear.
        return -difference(*given).sum()

    functions = {
        "eap": lambda graph: attribute.get_scores_eap(model, graph, batches, loss, quiet=True),
        "eap-ig-inputs": lambda graph: attribute.get_scores_eap_ig(
            model, graph, batches, loss, steps=job["steps"], quiet=True
        ),
        "eap-ig-activations": lambda graph: attribute.get_scores_ig_activations(
            model, graph, batches, loss, steps=job["steps"], quiet=True
        ),
    }

    def scores() -> tuple[Values, float]:
        graph = graphs.Graph.from_model(model)
        graph.scores[:] = functions[job["method"]](graph).cpu()
        values = np.array([float(graph.edges[name].score) for name in job["edges"]])
        return {f"edges/{job['method']}": values[:, None]}, 0.0

    def curve() -> tuple[Values, float]:
        spec = importlib.util.spec_from_file_location(
            "mib_evaluation", Path(job["mib"]) / "MIB_circuit_track" / "evaluation.py"
        )
        assert spec is not None and spec.loader is not None  # noqa: PT018
        mib = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mib)
        # MIB pins another commit of the package, whose function takes one option more.
        mib.evaluate_graph = lambda *given, optimal_ablation_path=None, **named: evaluate.evaluate_graph(
            *given, **named
        )
        graph = graphs.Graph.from_json(job["scores"])
        _, cpr, cmd, _, faithfulness = mib.evaluate_area_under_curve(
            model, graph, batches, difference, quiet=True, level="edge", absolute=True
        )
        return {"curve/faithfulness": np.array(faithfulness)[:, None], "curve/areas": np.array([[cpr], [cmd]])}, 0.0

    return {"scores": scores, "curve": curve}[job["work"]]


if __name__ == "__main__":
    serve(prepare)
