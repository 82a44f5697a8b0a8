"""Self-repair against loops over rows and keys: attention written out again, gradients by autograd, full reruns."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import assay
from assay.data import PromptPair, PromptPairs
from conftest import ids_of, random_pairs, words, wrapped
from families import TINY
from oracles import naive

FAMILIES = ["llama", "mistral", "qwen2", "gemma2", "gpt-neox", "gpt-oss", "granite", "llama4", "opt", "mixtral"]
THRESHOLD, RELATIVE, TEMPERATURE = 0.1, 0.05, 2.0


@dataclass
class Watch:
    """What the oracle's attention function keeps, and the row that it ablates."""

    scores: dict[int, Tensor] = field(default_factory=dict)
    seen: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    sinks: dict[int, Tensor] = field(default_factory=dict)
    ablate: tuple[int, int, int, tuple[int, ...]] | None = None
    fired: int = 0


WATCH: list[Watch] = []


def attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **_):
    """Textbook attention, one head at a time."""
    (watch,), layer, group = WATCH, module.layer_idx, query.shape[1] // key.shape[1]
    outputs, kept_scores, kept_values = [], [], []
    seen = attention_mask[0, 0] > -1e30
    for head in range(query.shape[1]):
        k, v = key[0, head // group], value[0, head // group]
        scores = query[0, head] @ k.T * (scaling or query.shape[-1] ** -0.5)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if watch.ablate is not None and watch.ablate[:2] == (layer, head):
            scores = scores.clone()
            row = watch.ablate[2]
            mean = scores[row][seen[row]].mean()
            for each in watch.ablate[3]:
                scores[row, each] = mean
            watch.fired += 1
        kept_scores.append(scores)
        kept_values.append(v)
        weights = torch.exp(scores) * seen
        total = weights.sum(-1, keepdim=True) + (0 if s_aux is None else torch.exp(s_aux[head]))
        outputs.append(weights / total @ v)
    for scores in kept_scores:
        if scores.requires_grad:
            scores.retain_grad()
    z = torch.stack(outputs, 1).unsqueeze(0)
    if z.requires_grad:
        z.retain_grad()
    watch.scores[layer], watch.seen[layer] = kept_scores, seen
    watch.values[layer], watch.outputs[layer] = torch.stack(kept_values).detach(), z
    if s_aux is not None:
        watch.sinks[layer] = s_aux.detach()
    return z, None


AttentionInterface.register("self-repair-oracle", attention)
AttentionMaskInterface.register("self-repair-oracle", eager_mask)


@contextmanager
def watching(hf, ablate=None):
    before = hf.config._attn_implementation
    hf.set_attn_implementation("self-repair-oracle")
    WATCH.append(Watch(ablate=ablate))
    try:
        yield WATCH[0]
    finally:
        WATCH.clear()
        hf.set_attn_implementation(before)


def difference(hf, pair: PromptPair) -> Tensor:
    logits = hf(input_ids=torch.tensor([ids_of(pair.clean)]), use_cache=False).logits[0, -1]
    return logits[ids_of(pair.answer)[0]] - logits[ids_of(pair.wrong_answer)[0]]


def softmax(scores: list[float], sink: float | None, temperature: float = 1.0) -> list[float]:
    weights = [math.exp(score / temperature) for score in scores]
    total = sum(weights) + (math.exp(sink / temperature) if sink is not None else 0.0)
    return [weight / total for weight in weights]


def by_hand(hf, pair: PromptPair) -> dict[tuple[int, int, int], dict[str, object]]:
    """Every row of attention: contributions, and effects by the frozen gradient, in loops over keys."""
    with watching(hf) as watch:
        hook = hf.get_input_embeddings().register_forward_hook(lambda *args: args[2].detach().requires_grad_(True))
        difference(hf, pair).backward()
        hook.remove()
    hf.zero_grad(set_to_none=True)
    found = {}
    for layer, of_heads in watch.scores.items():
        gradients = watch.outputs[layer].grad[0]
        for head, of_queries in enumerate(of_heads):
            for query in range(len(of_queries)):
                keys = watch.seen[layer][query].nonzero().flatten().tolist()
                scores = [of_queries[query, key].item() for key in keys]
                sink = watch.sinks[layer][head].item() if layer in watch.sinks else None
                worth = [(watch.values[layer][head, key] @ gradients[query, head]).item() for key in keys]
                pattern = softmax(scores, sink)
                parts = [p * g for p, g in zip(pattern, worth, strict=True)]
                found[layer, head, query] = {"parts": parts}
                if len(keys) < 2:
                    continue
                one, two = sorted(range(len(keys)), key=lambda i, parts=parts: -parts[i])[:2]
                mean = sum(scores) / len(scores)

                def loss(*out: int, scores=scores, sink=sink, worth=worth, parts=parts, mean=mean) -> float:
                    changed = [mean if i in out else score for i, score in enumerate(scores)]
                    after = softmax(changed, sink)
                    return sum(parts) - sum(p * g for p, g in zip(after, worth, strict=True))

                tempered = softmax(scores, sink, TEMPERATURE)
                average = sum(p * g for p, g in zip(tempered, worth, strict=True))
                found[layer, head, query] |= {
                    "key_1": keys[one],
                    "key_2": keys[two],
                    "contribution_1": parts[one],
                    "contribution_2": parts[two],
                    "contribution_all": (watch.outputs[layer][0, query, head] @ gradients[query, head]).item(),
                    "frozen_1": loss(one),
                    "frozen_2": loss(two),
                    "frozen_joint": loss(one, two),
                    # The gradient of the whole model, as autograd has it at the scores themselves.
                    "gradient": sum(of_queries.grad[query, keys[i]].item() * (scores[i] - mean) for i in (one, two)),
                    "tempered": sum(tempered[i] * (worth[i] - average) * (scores[i] - mean) for i in (one, two)),
                }
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_and_effects_equal_loops(family: str) -> None:
    model, pairs = wrapped(family), random_pairs(2)
    found = assay.self_repair(
        model, pairs, threshold=THRESHOLD, relative=RELATIVE, temperature=TEMPERATURE, rerun=1000, force=True
    )
    rows = {(row.example, row.layer, row.head, row.query): row for row in found.rows.itertuples()}
    expected_rows = set()
    for example, pair in enumerate(pairs):
        expected = by_hand(model.hf, pair)
        largest = max(max(row["parts"]) for row in expected.values())
        with torch.no_grad(), watching(model.hf):
            base = difference(model.hf, pair).item()
        for (layer, head, query), row in expected.items():
            counts = [sum(part > limit for part in row["parts"]) for limit in (THRESHOLD, RELATIVE * largest)]
            if max(counts) < 2:
                continue
            assert sum(row["parts"]) == pytest.approx(row["contribution_all"], abs=1e-9)
            expected_rows.add((example, layer, head, query))
            mine = rows[example, layer, head, query]
            assert [mine.keys_absolute, mine.keys_relative] == counts
            for name, value in row.items():
                if name != "parts":
                    assert getattr(mine, name) == pytest.approx(value, abs=1e-9), name
            for name, keys in (("1", (mine.key_1,)), ("2", (mine.key_2,)), ("joint", (mine.key_1, mine.key_2))):
                with torch.no_grad(), watching(model.hf, (layer, head, query, keys)) as watch:
                    value = difference(model.hf, pair).item()
                assert watch.fired == 1
                assert getattr(mine, f"true_{name}") == pytest.approx(base - value, abs=1e-8), name
    assert set(rows) == expected_rows
    assert len(rows) > 5
    assert len({key[1] for key in rows}) > 1
    assert found.rows["drawn"].all()


def planted(strengths: tuple[float, ...]) -> tuple[assay.Model, PromptPairs]:
    """A model without positions in which head h of layer 0 looks, from the last token, with score strengths[h] at
    token 5, which stands twice in the prompt, and with score 0 at all others; nothing else acts on the logits."""
    model = wrapped("gpt-neox-sequential")
    hf = model.hf
    tokens = [5, 7, 8, 5, *range(10, 20), 9]
    with torch.no_grad():
        for block in hf.gpt_neox.layers:
            for module in (block.attention.query_key_value, block.attention.dense, block.mlp.dense_4h_to_h):
                module.weight.zero_()
                module.bias.zero_()
        block = hf.gpt_neox.layers[0]
        distinct = sorted(set(tokens))
        x = block.input_layernorm(hf.gpt_neox.embed_in(torch.tensor(distinct)))
        reads = torch.linalg.pinv(x)  # column t reads "this is token t"
        width = model.d_head
        of_heads = block.attention.query_key_value.weight.view(model.n_heads, 3, width, model.d_model)
        for head, strength in enumerate(strengths):
            of_heads[head, 0, 0] = reads[:, distinct.index(9)] * strength * width**0.5
            of_heads[head, 1, 0] = reads[:, distinct.index(5)]
            of_heads[head, 2, 0] = reads[:, distinct.index(5)]
            block.attention.dense.weight[:, head * width] = 0.1 * hf.gpt_neox.embed_in.weight[5]
        logits = naive.logits_of(hf, tokens)[-1]
        block.attention.dense.weight.mul_(-1)
        without = naive.logits_of(hf, tokens)[-1]
        block.attention.dense.weight.mul_(-1)
    order = (logits - without).argsort().tolist()
    corrupted = [6 if token == 5 else token for token in tokens]
    return model, PromptPairs((PromptPair(words(tokens), words(corrupted), f" w{order[-1]}", f" w{order[0]}"),))


def test_two_keys_that_stand_in_for_each_other_are_found() -> None:
    model, pairs = planted((2.5, 3.5, 4.5, 5.5))
    found = assay.self_repair(model, pairs, relative=0.2, force=True)
    rows = found.rows[found.rows["query"] == 14]
    assert list(rows["head"]) == [0, 1, 2, 3]
    assert set(rows["layer"]) == {0}
    assert {frozenset(keys) for keys in zip(rows["key_1"], rows["key_2"], strict=True)} == {frozenset({0, 3})}
    # As computed by hand: 15 keys of which two have score s, 13 have 0, and the mean is 2 s / 15.
    for row, s in zip(rows.itertuples(), (2.5, 3.5, 4.5, 5.5), strict=True):
        worth = row.contribution_all / (2 * math.exp(s) / (2 * math.exp(s) + 13))

        def share(one: float, two: float) -> float:
            return (math.exp(one) + math.exp(two)) / (math.exp(one) + math.exp(two) + 13)

        single, joint = (worth * (share(s, s) - share(*left)) for left in ((s, 2 * s / 15), (2 * s / 15, 2 * s / 15)))
        assert row.frozen_1 == pytest.approx(single, rel=1e-9)
        assert row.frozen_2 == pytest.approx(single, rel=1e-9)
        assert row.frozen_joint == pytest.approx(joint, rel=1e-9)
    largest = rows.iloc[-1]
    for readout in ("frozen", "true"):
        assert largest[f"{readout}_1"] < 0.1 * largest[f"{readout}_joint"]
        assert (largest[f"{readout}_joint"] - 2 * largest[f"{readout}_1"]) / largest[f"{readout}_joint"] > 0.8
    # The more weight the two keys have, the more both together matter, and the less their gradient sees.
    assert list(rows["frozen_joint"].rank()) == [1, 2, 3, 4]
    assert list(rows["gradient"].rank()) == [4, 3, 2, 1]
    assert list(rows["tempered"].rank()) == [1, 2, 3, 4]
    assert found.worst(1).iloc[0]["head"] == 3


@pytest.mark.parametrize(("family", "norm"), [("llama", "model.norm"), ("gpt2", "transformer.ln_f"), ("gemma2", "")])
@pytest.mark.parametrize("ablation", ["zero", "resample"])
def test_compensation_equals_hooks(family: str, norm: str, ablation: str) -> None:
    model, pairs = wrapped(family), random_pairs(6, lengths=(6,))
    found = assay.compensation(model, pairs, ablation=ablation, force=True)
    exact = {"zero": assay.zero_ablation, "resample": assay.resample_ablation}[ablation]
    np.testing.assert_allclose(found.total, -exact(model, pairs, sites="heads", force=True).values, atol=1e-12)
    np.testing.assert_allclose(found.by_norms + found.by_components, found.direct - found.total, atol=1e-12)
    if ablation == "resample" or not norm:
        return
    hf = model.hf
    for example, pair in enumerate(pairs):
        ids = ids_of(pair.clean)
        answer, wrong = ids_of(pair.answer)[0], ids_of(pair.wrong_answer)[0]
        kept = []
        hook = hf.get_submodule(norm).register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0][0, -1]))
        base = naive.logits_of(hf, ids)[-1]
        hook.remove()
        for number, place in enumerate(naive.places(hf, ("heads",))):
            value = naive.activation(hf, family, ids, place)
            without = naive.patched_logits(hf, family, ids, place, torch.zeros_like(value))[-1]
            change = base - without
            assert found.total[number, example] == pytest.approx((change[answer] - change[wrong]).item(), abs=1e-9)
            contribution = written(hf, family, place, value[-1])
            direct = through_frozen_norm(hf.get_submodule(norm), kept[0], contribution)
            direct_logits = hf.get_output_embeddings().weight @ direct
            assert found.direct[number, example] == pytest.approx(
                (direct_logits[answer] - direct_logits[wrong]).item(), abs=1e-9
            )
            rescaled = hf.get_output_embeddings()(hf.get_submodule(norm)(kept[0] - contribution))
            change = base - rescaled
            assert found.rescaled[number, example] == pytest.approx((change[answer] - change[wrong]).item(), abs=1e-9)


def written(hf, family: str, place: naive.Place, z: Tensor) -> Tensor:
    """What a head adds to the residual stream at one position: z W_O, its slice of W_O cut out."""
    _, layer, head = place
    projection = hf.get_submodule(TINY[family].layers)[layer].get_submodule(TINY[family].output_projection)
    weight = projection.weight.T if type(projection).__name__ == "Conv1D" else projection.weight
    return (weight[:, head * len(z) : (head + 1) * len(z)] @ z).detach()


def through_frozen_norm(norm, x: Tensor, change: Tensor) -> Tensor:
    if hasattr(norm, "bias") and norm.bias is not None:
        spread = (x.var(unbiased=False) + norm.eps).sqrt()
        return (norm.weight * (change - change.mean()) / spread).detach()
    return (norm.weight * change / (x.square().mean() + norm.variance_epsilon).sqrt()).detach()
