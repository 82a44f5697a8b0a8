"""``assay self-repair`` as a user sees it, and what the result does in Python."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import assay
from assay.errors import InterventionError, ModelError, OptionError, StoreError
from assay.interactions.result import COLUMNS, Sequences
from assay.report.self_repair import answer, described, meaning
from assay.report.self_repair_page import write_self_repair_page
from cli.conftest import Run
from conftest import random_pairs, wrapped

COMMAND = ("self-repair", "sequence-sort", "--task", "sort", "--n", "4", "--relative", "0.05")


def test_tables_page_json_and_the_finished_run(run: Run, tmp_path: Path) -> None:
    ended = run(*COMMAND, "--components", "zero", "--out", "folder")
    assert ended.code == 0
    for part in (
        "of attention in 4 prompts",
        "rerun",
        "Rows that hide most",
        "[[1",
        "Compensation between",
        "by norms",
    ):
        assert part in ended.out
    page = (tmp_path / "folder/report.html").read_text("utf-8")
    assert "<mark" in page
    assert "https://" not in page.replace("https://plotly", "").split("</script>")[-1]
    result = assay.SelfRepair.load("folder")
    assert list(result.rows) == list(COLUMNS)
    assert f"in {len(result.over('relative'))} rows of attention in 4 prompts" in " ".join(ended.out.split())
    assert result.provenance["model"]["weights_sha256"][:16] in page
    assert result.provenance["command"].startswith("assay self-repair sequence-sort --task sort")
    again = run(*COMMAND, "--components", "zero", "--out", "folder")
    assert "finished already" in again.out
    shown = run("show", "folder", "--top", "10")
    assert shown.code == 0
    assert shown.out in again.out
    found = json.loads(run("show", "folder", "--json").out)
    assert found["summary"] == json.loads(json.dumps(result.summary()))
    assert sum(found["per_input"]["relative"]) == found["summary"]["relative"]["rows"] == len(result.over("relative"))
    assert found["compensation"]["heads_with_direct_effect"] > 0
    other = run(*COMMAND, "--out", "folder")
    assert other.code == 2
    assert "components" in other.err


def line(example: int, one: float, two: float, joint: float, **rerun: float) -> dict[str, float]:
    """A row of `SelfRepair.rows` with these frozen effects; those of a rerun are the same unless given."""
    values = dict.fromkeys(COLUMNS, 0.0) | {"example": example, "key_1": 1, "query": 2, "drawn": True}
    values |= {"keys_relative": 2, "contribution_1": 1.0, "contribution_2": 1.0, "gradient": joint, "tempered": joint}
    for readout in ("frozen", "true"):
        values |= {f"{readout}_1": one, f"{readout}_2": two, f"{readout}_joint": joint}
    return values | rerun


def found_of(lines: list[dict[str, float]], prompts: int) -> assay.SelfRepair:
    model, pairs = wrapped("llama"), random_pairs(prompts)
    empty = assay.self_repair(model, pairs, threshold=1e6, relative=0.999, force=True)
    rows = pd.DataFrame(lines, columns=list(COLUMNS)).astype({"drawn": bool, "example": int, "sequence": int})
    return replace(empty, rows=rows.astype(dict.fromkeys(("layer", "head", "query", "key_1", "key_2"), int)))


def test_the_headline_counts_rows_whose_joint_effect_is_larger_by_the_rerun() -> None:
    """Frozen says that the two keys stand in for each other, the rerun that each alone does more."""
    harmful = {"true_1": -0.2, "true_2": -0.213, "true_joint": -0.296}
    _, relative = answer(found_of([line(0, 0.1, 0.1, 0.5, **harmful)], 16))
    assert "in 1 row of attention in 16 prompts" in relative
    assert "further than the two single effects summed in 0 of 1 rows (rerun, all)" in relative
    assert "(hidden: -40%)" in relative
    assert "In 1 of them E12 is negative" in relative
    lines = [line(i % 8, 0.1, 0.1, 0.4 + 0.01 * i) for i in range(50)]
    lines[7] |= {"true_1": 0.5}
    _, relative = answer(found_of(lines, 16))
    assert "in 49 of 50 rows (rerun, all)" in relative
    assert re.search(r"; \d+% \[\d+, \d+\] of the joint effect shows in no single ablation\.", relative)
    assert "negative" not in relative
    unmeasured = found_of([each | {"drawn": False} for each in lines], 16)
    assert "in 50 of 50 rows (frozen: none was rerun)" in answer(unmeasured)[1]


def test_sums_that_cancel_and_few_rows_have_no_share() -> None:
    few = found_of([line(0, 0.1, 0.1, 0.5), line(1, 0.1, 0.1, -0.49)], 3)
    of = few.summary()["relative"]["true"]
    assert of["interaction_of_sums"] is None
    assert of["gradient"] == dict.fromkeys(of["gradient"])
    assert (of["joint_larger"], of["joint_negative"]) == (2, 1)
    assert "too few for intervals" in meaning(few)
    (harmless, harmful) = (described(row) for row in few.rows.itertuples())
    assert "harmful" not in harmless
    assert "harmful" in harmful


def test_the_page_marks_words_without_their_spaces_and_names_both_thresholds(tmp_path: Path) -> None:
    """A space inside a mark would stand alone, coloured, at the end of a line."""
    found = found_of([line(i, 0.1, 0.1, 0.5) for i in range(6)], 6)
    texts = Sequences(tuple(range(6)), ((" one", " two", " three"),) * 6)
    found = replace(found, sequences=texts, threshold=1.0)
    write_self_repair_page(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert re.search(r" <mark>one<sup>2</sup></mark> <mark>two<sup>1</sup></mark> <mark class=.q.>three", page)
    assert f"above 1 {found.unit.removesuffix('s')}: 0 in all" in page
    assert "in 6 rows of attention in 6 prompts" in page
    assert "Next: assay score --method gim" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--relative", "0"), "--relative"),
        (("--threshold", "-1"), "--threshold"),
        (("--temperature", "0.5"), "--temperature"),
        (("--rerun", "-1"), "--rerun"),
        (("--components", "noise"), "mean, zero, resample"),
        (("--mean", "position"), "--components"),
        (("--components", "zero", "--mean", "position"), "averages nothing"),
        (("--metric", "exact-match"), "gradient"),
        (("--metric", "kl"), "flat at the clean run"),
    ],
)
def test_bad_options_are_refused(run: Run, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    ended = run(*COMMAND, *options, "--out", "folder")
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "folder").exists()


def test_saved_and_read_again(tmp_path: Path) -> None:
    model, pairs = wrapped("llama"), random_pairs(3)
    result = assay.self_repair(model, pairs, relative=0.05, force=True)
    result.save(tmp_path / "folder")
    again = assay.SelfRepair.load(tmp_path / "folder")
    pd.testing.assert_frame_equal(again.rows, result.rows)
    assert again.summary() == result.summary()
    assert again.sequences == result.sequences
    with pytest.raises(StoreError, match="exists already"):
        result.save(tmp_path / "folder")
    (tmp_path / "folder/rows.parquet").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="damaged"):
        assay.SelfRepair.load(tmp_path / "folder")


def test_a_sample_is_a_part_of_the_whole(tmp_path: Path) -> None:
    model, pairs = wrapped("mistral"), random_pairs(3)
    options = {"relative": 0.02, "force": True}
    whole = assay.self_repair(model, pairs, rerun=10_000, **options)
    part = assay.self_repair(model, pairs, rerun=5, **options)
    none = assay.self_repair(model, pairs, rerun=0, **options)
    assert whole.rows["drawn"].all()
    assert part.rows["drawn"].sum() == 5
    assert len(whole.rows) > 15
    assert none.rows["true_joint"].isna().all()
    assert none.summary()["relative"]["true"]["joint"] is None
    frozen = [name for name in COLUMNS if not name.startswith("true_") and name != "drawn"]
    pd.testing.assert_frame_equal(whole.rows[frozen], part.rows[frozen])
    rerun = part.rows["true_joint"].notna()
    assert 10 <= rerun.sum() <= 15  # those drawn and the ten that hide most
    assert set(part.worst(10).index) <= set(part.rows.index[rerun])
    for name in ("true_1", "true_2", "true_joint"):
        np.testing.assert_allclose(part.rows[name][rerun], whole.rows[name][rerun], atol=1e-11)


def test_memory_and_batches_change_nothing() -> None:
    model, pairs = wrapped("gemma3"), random_pairs(5)
    large = assay.self_repair(model, pairs, relative=0.05, force=True)
    alone = [
        assay.self_repair(model, pairs[i : i + 1], relative=0.05, force=True).rows.assign(example=i)
        for i in range(len(pairs))
    ]
    keys = ["example", "layer", "head", "query"]
    values = [name for name in COLUMNS if name not in ("sequence", "drawn")]
    together = large.rows.sort_values(keys, ignore_index=True)[values]
    pd.testing.assert_frame_equal(together, pd.concat(alone, ignore_index=True)[values], rtol=1e-9, atol=1e-10)


def test_no_row_and_prompts_of_one_token() -> None:
    model = wrapped("llama")
    pairs = [assay.PromptPair("w3", "w4", " w7", " w8"), assay.PromptPair("w5", "w6", " w7", " w8")]
    result = assay.self_repair(model, pairs, force=True)
    assert len(result.rows) == 0
    assert result.summary()["absolute"]["rows_per_input"]["mean"] == 0
    assert result.per_head()["relative"].sum() == 0


def test_two_rows_of_an_example_are_one_input() -> None:
    """Answers of two tokens are read in a sequence each; counts are of the prompt."""
    model = wrapped("llama")
    pairs = [assay.PromptPair("w3 w4 w9 w2 w1", "w3 w5 w9 w2 w1", " w7 w8", " w9 w11")]
    result = assay.self_repair(model, pairs, relative=0.05, force=True)
    assert len(result.sequences.examples) == 2
    assert set(result.rows["sequence"]) == {0, 1}
    assert list(result.per_input("relative")) == [len(result.over("relative"))]
    assert result.rows["true_joint"].notna().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision(dtype: torch.dtype) -> None:
    exact, model, pairs = wrapped("gpt-oss"), wrapped("gpt-oss", dtype), random_pairs(2)
    expected = assay.self_repair(exact, pairs, relative=0.03, force=True).rows.set_index(
        ["example", "layer", "head", "query"]
    )
    found = assay.self_repair(model, pairs, relative=0.03, force=True).rows.set_index(
        ["example", "layer", "head", "query"]
    )
    both = expected.index.intersection(found.index)
    assert len(both) > 0.5 * len(expected)
    same = found.loc[both, "key_1"] == expected.loc[both, "key_1"]
    limit = 1e-4 if dtype == torch.float32 else 0.15
    error = (found.loc[both, "frozen_joint"] - expected.loc[both, "frozen_joint"])[same].abs().max()
    assert error < limit * expected["frozen_joint"].abs().max()


def test_the_model_is_left_as_it_was_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = wrapped("llama"), random_pairs(2)
    before = model.hf.config._attn_implementation, model.weight_hash

    def changed(self, layer, scores, sinks):  # scores that are not the recorded ones
        return original(self, layer, scores + 0.1 * torch.arange(scores.shape[-1]), sinks)

    from assay.interactions import score_ablation

    original = score_ablation._ScoreTap.attention_scores
    monkeypatch.setattr(score_ablation._ScoreTap, "attention_scores", changed)
    with pytest.raises(InterventionError, match=r"recorded|replay"):
        assay.self_repair(model, pairs, relative=0.05, force=True)
    assert before == (model.hf.config._attn_implementation, model.weight_hash)
    assert all(parameter.requires_grad for parameter in model.hf.parameters())
    assert not model.has_foreign_hooks


def test_hooks_are_served_or_refused() -> None:
    """A hook that changes nothing changes no number; adding up contributions past it is refused."""
    model, pairs = wrapped("qwen2"), random_pairs(2)
    expected = assay.self_repair(model, pairs, relative=0.1, force=True)
    hook = model.layers[1].mlp.register_forward_hook(lambda _, __, output: output * 1.0)
    try:
        found = assay.self_repair(model, pairs, relative=0.1, force=True)
        with pytest.raises(ModelError, match="hooks"):
            assay.compensation(model, pairs, force=True)
    finally:
        hook.remove()
    pd.testing.assert_frame_equal(found.rows, expected.rows, rtol=1e-9, atol=1e-10)


def test_compensation_takes_heads_only() -> None:
    with pytest.raises(OptionError, match="heads"):
        assay.compensation(wrapped("llama"), random_pairs(2), sites="mlps", force=True)
