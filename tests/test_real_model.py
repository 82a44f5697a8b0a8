"""SmolLM2-135M: the numbers of a real language model against a plain hook and forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import assay
from assay.data.encoding import encode
from assay.data.metrics import METRICS
from assay.doctor import examine

pytestmark = pytest.mark.xdist_group("real models")


def test_doctor_passes(smollm2: assay.Model) -> None:
    for check in examine(smollm2):
        assert check.passed, check


def test_exact_effects_equal_a_plain_hook(smollm2: assay.Model) -> None:
    pairs = assay.tasks.ioi(smollm2, n=2)
    scores = assay.activation_patching(smollm2, pairs)
    frame = scores.to_pandas()
    hf, tokenizer = smollm2.hf, smollm2.tokenizer
    for site, layer, head in (
        ("heads", 23, 3),
        ("heads", 0, 8),
        ("heads", 29, 0),
        ("mlps", 0, None),
        ("mlps", 29, None),
    ):
        block = hf.model.layers[layer]
        module = block.self_attn.o_proj if site == "heads" else block.mlp
        row = frame[(frame.site == site) & (frame.layer == layer) & ((frame.unit == head) | (head is None))].index
        for example, pair in enumerate(pairs):
            answer, wrong = (tokenizer(text)["input_ids"][0] for text in (pair.answer, pair.wrong_answer))

            def metric(text: str, answer: int = answer, wrong: int = wrong) -> float:
                with torch.no_grad():
                    logits = hf(**tokenizer(text, return_tensors="pt")).logits[0, -1]
                return (logits[answer] - logits[wrong]).item()

            kept: list[torch.Tensor] = []
            if site == "heads":
                mine = slice(head * 64, head * 64 + 64)
                handle = module.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0].clone()))
            else:
                handle = module.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output.clone()))
            metric(pair.clean)
            handle.remove()
            base = metric(pair.corrupted)
            if site == "heads":

                def patch(_: object, args: tuple, kept: list = kept, mine: slice = mine) -> tuple:
                    z = args[0].clone()
                    z[..., mine] = kept[0][..., mine]
                    return (z,)

                handle = module.register_forward_pre_hook(patch)
            else:
                handle = module.register_forward_hook(lambda _, __, ___, kept=kept: kept[0])
            patched = metric(pair.corrupted)
            handle.remove()
            assert scores.values[row[0], example] == pytest.approx(patched - base, abs=1e-4)


def test_attribution_patching_agrees_with_exact_on_most(smollm2: assay.Model) -> None:
    pairs = assay.tasks.ioi(smollm2, n=4)
    exact = assay.activation_patching(smollm2, pairs, sites="heads")
    estimate = assay.attribution_patching(smollm2, pairs, sites="heads")
    assert np.corrcoef(exact.importance, estimate.importance)[0, 1] > 0.9
    # The base run; source, graph and backward pass from the first difference on; one pair of the longest plainly.
    rows = encode(smollm2, pairs, METRICS["logit-diff"])
    starts = {len(row.clean): min(r.first_difference for r in rows if len(r.clean) == len(row.clean)) for row in rows}
    tokens = sum(len(row.clean) for row in rows)
    late = sum(len(row.clean) - starts[len(row.clean)] for row in rows) / tokens
    assert late < 0.5
    assert estimate.cost["forward_equivalents"] == pytest.approx(1 + 4 * late + 2 * max(starts) / tokens)
    assert exact.cost["forward_equivalents"] < 270 / 4


def test_every_backward_rule_changes_the_gradient_of_a_checkpoint_and_no_value(smollm2: assay.Model) -> None:
    ids = torch.tensor([smollm2.tokenizer("When Mary and John went to the store, John gave a drink to")["input_ids"]])
    embeddings = smollm2.embedding(ids).detach().requires_grad_(True)

    def run(rules: str | assay.RuleSet) -> tuple[torch.Tensor, torch.Tensor]:
        with assay.backward_rules(smollm2, rules):
            logits = smollm2.hf(inputs_embeds=embeddings, use_cache=False).logits[0, -1]
        return logits.detach(), torch.autograd.grad(logits.max(), embeddings)[0]

    logits, plain = run("plain")
    for rules in (
        assay.RuleSet(temperature=2),
        assay.RuleSet(freeze_norms=True),
        *(assay.RuleSet(divide=(product,)) for product in ("pattern-value", "query-key", "gate-up")),
        "gim",
        "transformer-lrp",
        "attn-lrp",
    ):
        same, gradient = run(rules)
        assert torch.equal(logits, same)
        assert (gradient - plain).norm() > 0.1 * plain.norm()
