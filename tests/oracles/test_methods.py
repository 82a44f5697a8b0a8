"""Methods beyond patching and its slope, each against its definition written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.data import PromptPair
from assay.engine.sources import Resampled
from assay.errors import DataError, ModelError, OptionError
from assay.methods import Method
from assay.methods.path_patching import method_to
from assay.model.norms import frozen_norm
from assay.sites import describe, select
from conftest import ids_of, random_pairs, wrapped
from families import TINY
from oracles import naive
from oracles.test_exact_effects import logit_difference


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_two_point_is_the_trapezoid_on_the_slope(family: str) -> None:
    model, pairs, step = wrapped(family), random_pairs(2), 1e-6
    scores = assay.two_point(model, pairs, force=True)
    for place, values in zip(naive.places(model.hf), scores.values, strict=True):
        for pair, found in zip(pairs, values, strict=True):
            clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
            base, source = (naive.activation(model.hf, family, ids, place) for ids in (corrupted, clean))

            def value(a: float, place=place, base=base, source=source, corrupted=corrupted, pair=pair) -> float:
                new = base + a * (source - base)
                return logit_difference(naive.patched_logits(model.hf, family, corrupted, place, new), pair)

            slopes = [(value(a + step) - value(a - step)) / (2 * step) for a in (0, 1)]
            assert found == pytest.approx(sum(slopes) / 2, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-neox"])
def test_resample_ablation_takes_one_other_prompt_for_each(family: str) -> None:
    model, pairs, reference = wrapped(family), random_pairs(4), random_pairs(20, seed=5)
    scores = assay.resample_ablation(model, pairs, reference=reference, force=True)
    for i, pair in enumerate(pairs):
        clean = ids_of(pair.clean)
        base = logit_difference(naive.logits_of(model.hf, clean), pair)
        candidates = {
            tuple(ids_of(other.corrupted)) for other in reference if len(ids_of(other.corrupted)) == len(clean)
        }

        def effects(ids: tuple[int, ...], clean=clean, base=base, pair=pair) -> np.ndarray:
            new = [naive.activation(model.hf, family, list(ids), place) for place in naive.places(model.hf)]
            logits = [
                naive.patched_logits(model.hf, family, clean, place, value)
                for place, value in zip(naive.places(model.hf), new, strict=True)
            ]
            return np.array([logit_difference(found, pair) - base for found in logits])

        fitting = [ids for ids in candidates if np.allclose(effects(ids), scores.values[:, i], rtol=0, atol=1e-9)]
        assert len(fitting) == 1
    again = assay.resample_ablation(model, pairs, reference=reference, force=True)
    assert (again.values == scores.values).all()
    other = assay.resample_ablation(model, pairs, reference=reference, seed=1, force=True)
    assert (other.values != scores.values).any()
    with pytest.raises(DataError, match="no other reference prompt"):
        assay.resample_ablation(model, random_pairs(1), force=True)
    with pytest.raises(OptionError, match="takes no --reference"):
        assay.zero_ablation(model, pairs, reference=reference, force=True)


@pytest.mark.parametrize("family", TINY)
def test_a_frozen_norm_is_the_norms_own_linear_map(family: str) -> None:
    """Its factor is the norm's own: frozen at x and applied to x it gives the norm, bias apart; and it is linear."""
    model = wrapped(family)
    torch.manual_seed(0)
    x, d = torch.randn(2, 3, model.d_model, dtype=torch.float64), torch.randn(2, 3, model.d_model, dtype=torch.float64)
    with torch.no_grad():
        through = frozen_norm(model.final_norm, x)
        bias = model.final_norm(torch.zeros_like(x))
        torch.testing.assert_close(through(x) + bias, model.final_norm(x), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(through(2 * x + d), 2 * through(x) + through(d), rtol=1e-9, atol=1e-9)
        has_mean = type(model.final_norm).__name__ not in (
            "LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Qwen3MoeRMSNorm",
            "GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "Phi3RMSNorm", "Olmo2RMSNorm", "Olmo3RMSNorm",
            "GraniteRMSNorm", "Llama4TextRMSNorm", "GptOssRMSNorm",
        )  # fmt: skip
        ones = through(torch.ones_like(x)).abs().max()
        assert (ones < 1e-9) == has_mean


@pytest.mark.parametrize(
    "family", [name for name, tiny in TINY.items() if tiny.attention != "post_attention_layernorm"]
)
def test_direct_effects_and_the_embedding_sum_to_the_frozen_change(family: str) -> None:
    """Heads, MLPs and the first residual stream make up the last one; so do their direct effects."""
    model, pairs = wrapped(family), random_pairs(3)
    scores = assay.direct_effect(model, pairs, force=True)
    whole = assay.direct_effect(model, pairs, sites="attention,mlps", force=True)
    layers = model.n_layers
    heads = scores.values[: layers * model.n_heads].reshape(layers, model.n_heads, -1).sum(1)
    np.testing.assert_allclose(heads, whole.values[:layers], rtol=0, atol=1e-9)
    softcap = getattr(model.config, "final_logit_softcapping", None)
    assert softcap is None
    for i, pair in enumerate(pairs):
        ends = []
        for text in (pair.corrupted, pair.clean):
            kept = []
            hook = model.final_norm.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0][0, -1]))
            first = naive.activation(model.hf, family, ids_of(text), ("residual-pre", 0, None))[-1]
            hook.remove()
            ends.append((first, kept[0]))
        with torch.no_grad():
            through = frozen_norm(model.final_norm, ends[0][1])
            (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
            head = model.hf.get_output_embeddings().weight
            direction = head[answer] - head[wrong]
            if family == "opt":
                direction = direction @ model.hf.model.decoder.project_out.weight
            scale = {"granite": 1 / 1.7, "cohere": 0.3, "cohere2": 0.3}.get(family, 1.0)
            change = scale * (through(ends[1][1] - ends[0][1]) @ direction).item()
            entered = scale * (through(ends[1][0] - ends[0][0]) @ direction).item()
        assert scores.values[:, i].sum() + entered == pytest.approx(change, abs=1e-9)


def test_direct_effect_of_one_head_written_out() -> None:
    model, pairs = wrapped("gemma2"), random_pairs(1)
    scores = assay.direct_effect(model, pairs, sites="heads[1]", force=True)
    (pair,) = pairs
    clean, corrupted = ids_of(pair.clean), ids_of(pair.corrupted)
    layer = model.layers[1].module
    z = {
        (side, head): naive.activation(model.hf, "gemma2", ids, ("heads", 1, head))[-1]
        for side, ids in (("clean", clean), ("corrupted", corrupted))
        for head in range(model.n_heads)
    }
    with torch.no_grad():
        full = layer.self_attn.o_proj(torch.cat([z["corrupted", head] for head in range(model.n_heads)]))
        norm = layer.post_attention_layernorm
        alone = torch.zeros(model.n_heads, model.d_head, dtype=torch.float64)
        alone[2] = z["clean", 2] - z["corrupted", 2]
        added = layer.self_attn.o_proj(alone.flatten()) * (1 + norm.weight) / (full.square().mean() + norm.eps).sqrt()
        kept = []
        hook = model.final_norm.register_forward_pre_hook(lambda _, args: kept.append(args[0][0, -1]))
        naive.logits_of(model.hf, corrupted)
        hook.remove()
        final = model.final_norm
        read = added * (1 + final.weight) / (kept[0].square().mean() + final.eps).sqrt()
        (answer,), (wrong,) = ids_of(pair.answer), ids_of(pair.wrong_answer)
        weight, cap = model.hf.lm_head.weight, model.config.final_logit_softcapping
        capped = naive.logits_of(model.hf, corrupted)[-1] / cap
        slope = 1 - capped.square()
        expected = slope[answer] * (weight[answer] @ read) - slope[wrong] * (weight[wrong] @ read)
    assert scores.values[2, 0] == pytest.approx(expected.item(), abs=1e-9)
    with pytest.raises(OptionError, match="not for residual-pre"):
        assay.direct_effect(model, pairs, sites="residual-pre", force=True)


def test_resampling_depends_on_the_example_alone() -> None:
    """Examples that share a clean prompt, answers of unequal length, any order: each example's draw is its own."""
    model = wrapped("llama")
    first, second = random_pairs(2, lengths=(6,))
    shared = PromptPair(first.clean, second.corrupted, first.answer, first.wrong_answer)
    reference = random_pairs(25, seed=8, lengths=(6, 7))

    def run(*pairs: PromptPair) -> np.ndarray:
        return assay.resample_ablation(model, list(pairs), reference=reference, seed=3, force=True).values

    alone = [run(pair) for pair in (first, shared)]
    np.testing.assert_allclose(run(first, shared), np.hstack(alone), rtol=0, atol=1e-11)
    np.testing.assert_allclose(run(shared, first), np.hstack(alone[::-1]), rtol=0, atol=1e-11)


def test_both_answers_of_an_example_see_one_resampled_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrapped("llama")
    pairs = [
        PromptPair(p.clean, p.corrupted, p.answer, p.wrong_answer + " w4" * (i % 3))
        for i, p in enumerate(random_pairs(5))
    ]
    drawn: dict[str, set] = {}
    normal = Resampled.__init__

    def watch(self: Resampled, *args: object) -> None:
        normal(self, *args)
        for (_, clean, corrupted), ids in self.drawn.items():
            length = next(
                len(ids_of(p.clean)) for p in pairs if clean[: len(ids_of(p.clean))] == tuple(ids_of(p.clean))
            )
            drawn.setdefault(str((clean[:length], corrupted[:length])), set()).add(ids[:length])
            assert ids[length:] == clean[length:]

    monkeypatch.setattr(Resampled, "__init__", watch)
    assay.resample_ablation(model, pairs, reference=random_pairs(25, seed=8), force=True)
    assert len(drawn) == 5
    assert all(len(prompts) == 1 for prompts in drawn.values())


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt", "cohere"])
def test_the_kind_of_norm_is_told_at_any_scale_and_precision(family: str, dtype: torch.dtype, scale: float) -> None:
    norm = wrapped(family).final_norm.to(dtype)
    torch.manual_seed(0)
    x = (torch.randn(3, 32, dtype=torch.float64) * scale).to(dtype)
    through = frozen_norm(norm, x)(torch.ones(3, 32, dtype=dtype)).abs().max()
    takes_mean = family in ("gpt2", "opt", "cohere")
    assert (through * scale < 1e-3) == takes_mean


@pytest.mark.parametrize("method", ["direct-effect", method_to("logits")], ids=["direct", "path"])
def test_methods_that_take_the_model_apart_refuse_hooks(method: str | Method) -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    model.layers[1].attention.register_forward_hook(lambda _, __, output: (output[0] * 2, *output[1:]))
    with pytest.raises(ModelError, match="adds up what components write"):
        assay.measure(method, model, pairs, force=True)


def test_selections_are_stored_so_that_they_differ() -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    stored = []
    for unit in (0, 3):
        receivers = assay.sites.queries(model).units(unit).layers(1, 3)
        senders = assay.sites.heads(model).layers(0).units(unit)
        scores = assay.path_patching(model, pairs, receivers, sites=senders, force=True)
        stored.append((scores.configuration["receivers"], scores.configuration["sites"]))
    assert stored == [("L1H0 q,L2H0 q", "L0H0"), ("L1H3 q,L2H3 q", "L0H3")]
    assert describe(select(model, "neurons")) != describe(select(model, "neurons-pre"))
