"""Models as people have them: with adapters, in half precision."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import assay
from assay.cli import main
from assay.data.encoding import encode
from assay.data.metrics import METRICS, Metric, Targets
from assay.errors import InterventionError, ModelError, OptionError
from assay.report import write_page
from conftest import random_pairs, wrapped
from families import TINY, tiny_model, tiny_tokenizer


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", ["q_proj", "o_proj", "down_proj"]),
        ("gemma2", ["v_proj", "o_proj", "up_proj"]),
        ("gpt2", ["c_proj", "c_attn"]),
    ],
)
def test_adapters_equal_their_merged_form(family: str, targets: list[str]) -> None:
    torch.manual_seed(0)
    adapted = get_peft_model(tiny_model(family), LoraConfig(r=3, lora_alpha=8, target_modules=targets)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    pairs = random_pairs()
    plain = assay.activation_patching(wrapped(family), pairs, force=True)
    methods = (assay.activation_patching, assay.attribution_patching, assay.direct_effect)
    model = assay.load(adapted, tiny_tokenizer())
    values = [method(model, pairs, force=True).values for method in methods]
    assert np.abs(values[0] - plain.values).max() > 0.05, "the adapters change nothing"
    merged = assay.load(adapted.merge_and_unload().eval(), tiny_tokenizer())
    for method, found in zip(methods, values, strict=True):
        np.testing.assert_allclose(found, method(merged, pairs, force=True).values, rtol=0, atol=1e-9)


def test_prompt_tuning_is_refused_and_adapter_states_are_told_apart() -> None:
    tuned = get_peft_model(tiny_model("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ModelError, match="Prompt-learning"):
        assay.load(tuned.eval(), tiny_tokenizer())
    adapted = get_peft_model(tiny_model("llama"), LoraConfig(r=2, target_modules=["o_proj"])).eval()
    model, pairs = assay.load(adapted, tiny_tokenizer()), random_pairs(2)
    on = assay.zero_ablation(model, pairs, sites="mlps", force=True).configuration
    with adapted.disable_adapter():
        off = assay.zero_ablation(model, pairs, sites="mlps", force=True).configuration
    assert "adapters default (beside)" in repr(model)
    assert "adapters" not in repr(wrapped("llama"))
    assert on["model"]["adapters"] == ["default (beside)"]
    assert off["model"]["adapters"] == ["default (beside, disabled)"]


def test_adapters_are_named_wherever_numbers_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adapted = get_peft_model(tiny_model("llama"), LoraConfig(r=2, target_modules=["o_proj"])).eval()
    scores = assay.zero_ablation(assay.load(adapted, tiny_tokenizer()), random_pairs(2), sites="mlps", force=True)
    scores.save(tmp_path / "run", finish=lambda scratch: write_page(scores, scratch / "report.html"))
    assert "PEFT adapters are in the model: default (beside)." in (tmp_path / "run/report.html").read_text("utf-8")
    monkeypatch.setattr(sys, "argv", ["assay", "show", str(tmp_path / "run")])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main()
    assert "PEFT adapters are in the model: default (beside)." in capsys.readouterr().out


def test_a_folder_of_an_adapter_says_what_it_is_and_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_model("llama", torch.float32).save_pretrained("base")
    tiny_tokenizer().save_pretrained("base")
    hf = AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    get_peft_model(hf, LoraConfig(r=2, target_modules=["o_proj"])).save_pretrained("adapter")
    with pytest.raises(ModelError, match=r"adapter is an adapter of PEFT for 'base'.*In Python") as raised:
        assay.load("adapter")
    monkeypatch.setattr(sys, "argv", ["assay", "score", "adapter", "--task", "ioi"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "an adapter of PEFT" in capsys.readouterr().err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]
    advice = [line.strip() for line in str(raised.value).splitlines() if line.startswith("  ")]
    known = {"AutoModelForCausalLM": AutoModelForCausalLM, "AutoTokenizer": AutoTokenizer, "PeftModel": PeftModel}
    names = {**known, "assay": assay}
    exec("\n".join(advice), names)  # the advice is code
    assert names["model"].adapters == ["default (beside)"]
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"(?s)adapter is an adapter of PEFT, not a whole model.*BASE"):
        assay.load("adapter")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("family", TINY)
def test_half_precision_tells_the_same_story(family: str, dtype: torch.dtype) -> None:
    has_experts = TINY[family].neurons_after is None
    pairs = random_pairs(6)
    whole = wrapped(family, torch.float32)
    for method in (assay.activation_patching, assay.attribution_patching):
        expected = method(whole, pairs, force=True).values
        try:
            found = method(wrapped(family, dtype), pairs, force=True).values
        except (ModelError, InterventionError):
            assert has_experts, "rounding may route a token to another expert; then a refusal is right"
            continue
        assert found.dtype == np.float64
        error = np.abs(found - expected).mean() / np.abs(expected).mean()
        assert error < (0.5 if has_experts else 0.12), error


def test_a_metric_of_ones_own() -> None:
    """The answer's logit minus the mean logit, against the definition."""

    def above_mean(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
        answer = logits.gather(-1, targets.tokens.unsqueeze(-1)).squeeze(-1)
        return (answer - logits.mean(-1)).sum(-1)

    metric = Metric(
        "above-mean", "logits", "logit of the answer above the mean", "answer", "vocabulary", True, above_mean
    )
    model, pairs = wrapped("llama"), random_pairs(3)
    scores = assay.activation_patching(model, pairs, metric=metric, sites="residual-pre[0]", force=True)
    assert (scores.metric, scores.unit) == ("above-mean", "logits")
    for row, value in zip(encode(model, pairs, METRICS["log-prob"]), scores.values[0], strict=True):
        ends = []
        for ids in (row.corrupted, row.clean):
            logits = model.hf(input_ids=torch.tensor([ids])).logits[0, -1]
            ends.append((logits[row.tokens[0]] - logits.mean()).item())
        assert value == pytest.approx(ends[1] - ends[0], abs=1e-9)


def test_a_metric_that_mixes_rows_is_refused() -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    for wrong in (lambda logits, _: logits.mean(), lambda logits, _: logits.sum(-1), lambda *_: 1.0):
        metric = Metric("mine", "logits", "", "answer", "vocabulary", True, wrong)
        with pytest.raises(OptionError, match="one value for each row"):
            assay.activation_patching(model, pairs, metric=metric, force=True)
