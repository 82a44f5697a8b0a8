"""The command line, from arguments to exit code."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import assay
from assay.errors import AssayError
from cli.conftest import Run
from conftest import tiny_model, tiny_tokenizer


def test_demo_shows_and_keeps_its_result(run: Run, tmp_path: Path) -> None:
    ended = run("demo")
    assert ended.code == 0
    assert "greedy answer right" in ended.out
    assert "Screened top 10 at level 95%" in ended.out
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()
    scores = assay.ScreenedScores.load(folder)
    assert len(scores.components) == 2048
    assert scores.runs < 200
    assert scores.components[scores.leaders[0]].name in ended.out
    assert scores.provenance["command"] == "assay screen sequence-sort --task sort --sites neurons"
    again = run("demo")
    assert again.code == 0
    assert "finished already" in again.out
    assert "Screened top 10" in again.out


def test_the_stored_command_makes_the_same_run(run: Run, tmp_path: Path) -> None:
    arguments = ("score", "sequence-sort", "--task", "sort", "--n", "4", "--length", "3", "--method", "zero-ablation")
    assert run(*arguments, "--out", "first").code == 0
    first = assay.Scores.load("first")
    command = first.provenance["command"].replace("--out first", "--out second").split()[1:]
    assert run(*command).code == 0
    second = assay.Scores.load("second")
    assert second.configuration == first.configuration
    assert (second.values == first.values).all()


def test_show_as_table_and_as_json(run: Run) -> None:
    run("score", "sequence-sort", "--task", "sort", "--n", "3", "--out", "folder")
    assert "L0 MLP" in run("show", "folder", "--top", "3").out
    shown = json.loads(run("show", "folder", "--top", "3", "--json").out)
    assert [row["component"] for row in shown["top"]] == list(assay.Scores.load("folder").top(3)["component"])
    assert shown["unit"] == "nats"


def test_another_configuration_is_refused_with_the_difference(run: Run) -> None:
    assert run("score", "sequence-sort", "--task", "sort", "--n", "3", "--out", "folder").code == 0
    ended = run("score", "sequence-sort", "--task", "sort", "--n", "4", "--out", "folder")
    assert ended.code == 2
    assert "  task n: 3 there, 4 now\n" in ended.err


def test_an_edited_prompt_file_is_another_configuration(run: Run, tmp_path: Path) -> None:
    line = {"clean": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "answer": " 1 2 END", "wrong_answer": " 3 4 END"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(line))
    assert run("score", "sequence-sort", "--task", "mine.jsonl", "--out", "folder").code == 0
    (tmp_path / "mine.jsonl").write_text(json.dumps({**line, "clean": "START 2 1 SEP"}))
    ended = run("score", "sequence-sort", "--task", "mine.jsonl", "--out", "folder")
    assert (ended.code, bool(re.search(r"  task content of the file: \w{8} there, \w{8} now", ended.err))) == (2, True)


def test_naming_a_default_is_the_same_run(run: Run) -> None:
    assert run(*SORT, "--n", "3", "--out", "folder").code == 0
    named = run(
        *SORT, "--n", "3", "--metric", "log-prob-diff", "--direction", "denoise", "--length", "5", "--out", "folder"
    )
    assert "finished already" in named.out
    assert "Baseline" in named.out
    assert run(*SORT, "--n", "3", "--device", "cuda", "--out", "folder").code == 2


def test_parameters_of_methods(run: Run, tmp_path: Path) -> None:
    task = ("score", "sequence-sort", "--task", "sort", "--n", "4", "--sites", "heads", "--metric", "log-prob")
    stored = {}
    for name, method in (
        ("default", "ms-hvp"),
        ("named", "ms-hvp --segments 5"),
        ("other", "ms-hvp --segments 2"),
        ("bare", "atp-star --no-qk-fix --no-grad-drop"),
        ("first", "attribution-patching"),
    ):
        assert run(*task, "--method", *method.split(), "--out", name).code == 0
        stored[name] = assay.Scores.load(tmp_path / name)
    assert "--segments" not in stored["default"].provenance["command"]
    assert stored["named"].request == stored["default"].request
    assert stored["other"].request["segments"] == "2"
    assert (stored["other"].values != stored["default"].values).any()
    assert stored["bare"].provenance["command"].endswith("--no-qk-fix --no-grad-drop --out bare")
    assert (stored["bare"].values >= 0).all()
    assert abs(stored["bare"].values - abs(stored["first"].values)).max() < 1e-5


def test_backward_rules_are_stored_and_said(run: Run, tmp_path: Path) -> None:
    task = ("score", "sequence-sort", "--task", "sort", "--n", "4", "--sites", "heads", "--metric", "log-prob")
    ended = {
        name: run(*task, "--method", *method.split(), "--out", name)
        for name, method in (
            ("first", "attribution-patching"),
            ("plain", "attribution-patching --rules plain"),
            ("ruled", "attribution-patching --rules gim"),
            ("gim", "gim"),
        )
    }
    assert [one.code for one in ended.values()] == [0, 0, 0, 0]
    stored = {name: assay.Scores.load(tmp_path / name) for name in ended}
    assert stored["plain"].request == stored["first"].request
    assert stored["ruled"].request["rules"] == "gim"
    assert stored["gim"].configuration["backward_rules"]["divide"] == ["pattern-value", "query-key", "gate-up"]
    assert (stored["ruled"].values == stored["gim"].values).all()
    assert (stored["gim"].values != stored["first"].values).any()
    for name in ("ruled", "gim"):
        assert "(rules gim)" in ended[name].out
        assert "estimate no effect" in ended[name].out
        assert "of difference" not in ended[name].out
        assert "rules gim" in (tmp_path / name / "report.html").read_text("utf-8")
    refused = run(*task, "--method", "hvp", "--rules", "gim", "--out", "refused")
    assert (refused.code, "--rules is only for --method" in refused.err) == (2, True)
    unknown = run(*task, "--method", "attribution-patching", "--rules", "lrp", "--out", "refused")
    assert (unknown.code, "There are no backward rules 'lrp'" in unknown.err) == (2, True)
    assert "transformer-lrp" in run("list", "rules").out


def test_a_file_is_known_by_its_content(run: Run, tmp_path: Path) -> None:
    line = {"clean": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "answer": " 1 2 END", "wrong_answer": " 3 4 END"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(line))
    assert run("score", "sequence-sort", "--task", "mine.jsonl", "--out", "folder").code == 0
    again = run("score", "sequence-sort", "--task", str(tmp_path / "mine.jsonl"), "--out", "folder")
    assert "finished already" in again.out


MINE = {"prompt": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "target": " 1 2 END", "wrong_answer": " 3 4 END"}


def test_tables_with_columns_of_other_names(run: Run, tmp_path: Path) -> None:
    lines = [",".join(MINE), ",".join(MINE.values())]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    command = ("score", "sequence-sort", "--task", "mine.csv", "--columns", "clean=prompt,answer=target")
    assert run(*command, "--out", "folder").code == 0
    scores = assay.Scores.load("folder")
    assert scores.provenance["command"].endswith("--columns clean=prompt,answer=target --out folder")
    assert scores.request["task"]["columns"] == {"clean": "prompt", "answer": "target"}
    assert "finished already" in run(*command, "--n", "1", "--out", "folder").out
    ended = run("score", "no-such-model", "--task", "mine.csv")
    assert (ended.code, "mine.csv lacks 'clean', 'answer'" in " ".join(ended.err.split())) == (2, True)


def test_unequal_lengths_can_be_aligned(run: Run, tmp_path: Path) -> None:
    line = {"clean": "START 1 5 2 SEP", "corrupted": "START 4 3 SEP", "answer": " 1 2", "wrong_answer": " 3 4"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(line))
    command = ("score", "sequence-sort", "--task", "mine.jsonl", "--force")
    refused = run(*command)
    assert (refused.code, "--align skip, pad or last-k" in refused.err) == (2, True)
    for align in ("pad", "last-k"):
        assert run(*command, "--align", align, "--out", align).code == 0
        assert assay.Scores.load(align).configuration["align"] == align
    assert run(*command, "--align", "pad", "--out", "last-k").code == 2


def test_what_is_hashed_is_what_is_parsed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that depend on the tokenizer are found after the model is loaded, in the bytes read before."""
    from assay.cli import running as module

    path = tmp_path / "relation.json"
    samples = [{"subject": f"{i} {i + 1}", "object": str(i)} for i in range(1, 5)]
    content = json.dumps({"prompt_templates": ["START {} SEP", "START {} 7 SEP"], "samples": samples})
    path.write_text(content)
    normal = module.load

    def load(*arguments: object, **options: object) -> assay.Model:
        path.write_text("{}")
        return normal(*arguments, **options)

    monkeypatch.setattr(module, "load", load)
    command = ("score", "sequence-sort", "--task", "relation.json", "--template", "1", "--force", "--n", "3")
    assert run(*command, "--out", "folder").code == 0
    scores = assay.Scores.load("folder")
    assert [pair.clean for pair in scores.pairs] == [f"START {i} {i + 1} 7 SEP" for i in range(1, 4)]
    task = {"n": 3, "sha256": hashlib.sha256(content.encode()).hexdigest(), "template": 1}
    assert scores.request["task"] == task
    path.write_text(content)
    assert "finished already" in run(*command, "--out", "folder").out


def test_rows_left_out_are_counted(run: Run, tmp_path: Path) -> None:
    samples = [{"subject": subject, "object": subject[0]} for subject in ("1 2", "3 4", "5")]
    (tmp_path / "r.json").write_text(json.dumps({"prompt_templates": ["START {} SEP"], "samples": samples}))
    ended = run("score", "sequence-sort", "--task", "r.json", "--force")
    assert "Left out: 1 of 3 rows of r.json: no partner of the same token length" in " ".join(ended.out.split())


def test_estimates_come_with_their_next_step(run: Run) -> None:
    assert "Next: --method activation-patching" in run(*SORT, "--n", "3", "--method", "attribution-patching").out
    assert "Next:" not in run(*SORT, "--n", "3").out


def test_all_unusable_pairs_are_named_at_once(run: Run, tmp_path: Path) -> None:
    good = {"clean": "START 1 2 SEP", "corrupted": "START 4 3 SEP", "answer": " 1 2 END"}
    bad = {**good, "corrupted": "START 4 SEP"}
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, [good, bad, good, bad])))
    ended = run("score", "sequence-sort", "--task", "mine.jsonl")
    assert ended.code == 2
    assert "2 of 4 pairs" in ended.err
    assert "'line 2'" in ended.err
    assert "'line 4'" in ended.err


@pytest.mark.parametrize(
    "command", ["score sequence-sort --task sort --n 2 --out kept | true", "PYTHONIOENCODING=ascii"]
)
def test_printing_never_stops_a_run(command: str, tmp_path: Path) -> None:
    """A reader that goes away, and a terminal that knows no plus-minus sign."""
    assay_command = f"{sys.executable} -c 'from assay.cli import main; main()'"
    if command.startswith("PYTHONIOENCODING"):
        line = f"{command} {assay_command} score sequence-sort --task sort --n 2 --out kept"
    else:
        line = f"{assay_command} {command}"
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, capture_output=True)
    assert len(assay.Scores.load(tmp_path / "kept").components) == 20


def test_a_model_that_cannot_tell_them_apart_stops_the_run(run: Run, tmp_path: Path) -> None:
    line = {"clean": "START 1 2 SEP", "corrupted": "START 1 2 SEP", "answer": " 1 2 END", "wrong_answer": " 2 1 END"}
    (tmp_path / "same.jsonl").write_text(json.dumps(line))
    ended = run("score", "sequence-sort", "--task", "same.jsonl", "--out", "folder")
    assert (ended.code, "does not tell clean from corrupted" in ended.err) == (2, True)
    assert "difference" in ended.out, "the baseline is shown all the same"
    assert not (tmp_path / "folder").exists()
    assert run("score", "sequence-sort", "--task", "same.jsonl", "--out", "folder", "--force").code == 0
    assert (assay.Scores.load("folder").values == 0).all()


def test_a_model_that_is_often_wrong_earns_a_caution(run: Run) -> None:
    assert "Caution" in run("score", "sequence-reverse", "--task", "sort", "--n", "4").out
    assert "Caution" not in run(*SORT, "--n", "4").out


def test_doctor_passes_the_bundled_models(run: Run) -> None:
    for name in ("sequence-sort", "sequence-reverse"):
        ended = run("doctor", name, "--json")
        found = json.loads(ended.out)
        assert (ended.code, found["sound"]) == (0, True)
        assert [check["name"] for check in found["checks"]] == [
            "eval mode", "logit parity", "residual identity", "head contributions", "batching", "padding",
            "self-patch identity",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", ["tasks", "methods", "models", "sites", "metrics"])
def test_lists(kind: str, run: Run) -> None:
    expected = {
        "tasks": "ioi", "methods": "mean-ablation", "models": "smollm2-135m", "sites": "mlps", "metrics": "prob-diff",
    }  # fmt: skip
    ended = run("list", kind)
    assert ended.code == 0
    assert expected[kind] in ended.out


SORT = ("score", "sequence-sort", "--task", "sort")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("score", "no-such-model", "--task", "sort"), "There is no model 'no-such-model'"),
        (("score", "./nothing", "--task", "sort"), "There is no model './nothing'"),
        (("score", "missing.gguf", "--task", "sort"), "There is no file missing.gguf"),
        (("score", "sequence-sort", "--task", "sorting"), "There is no task 'sorting'"),
        (("score", "sequence-sort", "--task", "none.jsonl"), "There is no file none.jsonl"),
        ((*SORT, "--sites", "heads,neuron"), "There is no site 'neuron'"),
        ((*SORT, "--sites", "heads,heads"), "once"),
        ((*SORT, "--sites", ""), "--sites"),
        ((*SORT, "--method", "patching"), "There is no method 'patching'"),
        ((*SORT, "--metric", "accuracy"), "There is no metric 'accuracy'"),
        ((*SORT, "--method", "attribution-patching", "--metric", "exact-match"), "needs a gradient"),
        ((*SORT, "--direction", "up"), "There is no direction 'up'"),
        ((*SORT, "--method", "zero-ablation", "--direction", "noise"), "takes no --direction"),
        ((*SORT, "--columns", "clean=prompt"), "no option --columns"),
        ((*SORT, "--template", "1"), "no option --template"),
        ((*SORT, "--align", "left"), "There is no alignment 'left'"),
        ((*SORT, "--chat"), "sequence-sort has no chat template"),
        (("score", "sequence-sort", "--task", "none.csv"), "There is no file none.csv"),
        (("score", "sequence-sort", "--task", "hf:a:b:c:d"), "A data set is named hf:owner/name"),
        (("score", "sequence-sort", "--task", "hf:a/b", "--length", "3"), "no option --length"),
        ((*SORT, "--mean", "position"), "takes no --mean"),
        ((*SORT, "--method", "mean-ablation", "--mean", "all"), "--mean is position or all-positions"),
        ((*SORT, "--method", "mean-ablation"), "--mean all-positions"),
        ((*SORT, "--segments", "2"), "--segments is only for --method ms-hvp"),
        ((*SORT, "--method", "hvp", "--no-qk-fix"), "--qk-fix is only for --method atp-star"),
        ((*SORT, "--method", "hvp-sampled", "--probes", "1"), "must be 2 to"),
        ((*SORT, "--method", "integrated-gradients", "--rule", "simpson"), "There is no rule 'simpson'"),
        ((*SORT, "--method", "local-curvature"), "is defined for neurons-pre, not for heads"),
        ((*SORT, "--method", "hvp", "--dtype", "bfloat16"), "need --dtype float32"),
        ((*SORT, "--method", "path-patching"), "needs --receivers"),
        ((*SORT, "--receivers", "logits"), "--receivers is only for --method path-patching"),
        ((*SORT, "--dtype", "int8"), "There is no dtype 'int8'"),
        ((*SORT, "--device", "gpu"), "There is no device 'gpu'"),
        ((*SORT, "--memory", "lots"), "--memory"),
        ((*SORT, "--n", "0"), "at least 1"),
        ((*SORT, "--top", "0"), "at least 1"),
        ((*SORT, "--length", "40"), "length from 1 to 11"),
        ((*SORT, "--corruption", "abc"), "no option --corruption"),
        ((*SORT, "--metric", "logit-diff"), "compares single tokens"),
        (("score", "sequence-sort", "--task", "ioi"), "knows 0 of"),
        ((*SORT, "--out", "x" * 300), "Cannot write"),
        (("list", "people"), "does not know 'people'"),
        (("show", "nowhere"), "There is no folder nowhere"),
        (("show", "."), "not a run folder"),
        (("doctor", "no-such-model"), "There is no model"),
        ((*SORT, "--out", "/proc/assay/run"), "Cannot write"),
    ],
)
def test_bad_input_is_one_readable_error(arguments: tuple[str, ...], complaint: str, run: Run, tmp_path: Path) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert complaint in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) < 24
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("score",), (*SORT, "--oops", "1"), (*SORT, "--n", "many"), ("scores",)])
def test_usage_errors_exit_with_2(arguments: tuple[str, ...], run: Run) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_folders_that_are_no_causal_language_model(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert "no config.json" in run("doctor", str(folder)).err
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert "'bert' is not supported" in run("doctor", str(folder)).err
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    ended = run("doctor", str(folder))
    assert (ended.code, "encoder-decoder" in ended.err) == (2, True)
    (folder / "config.json").write_text("{}")
    assert run("doctor", str(folder)).code == 2


def test_incomplete_and_text_free_checkpoints_are_refused(run: Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    tiny_model("llama", torch.float32).save_pretrained(folder)
    assert "tokenizer" in run("doctor", str(folder)).err
    tiny_tokenizer().save_pretrained(folder)
    assert run("doctor", str(folder)).code == 0
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ended = run("doctor", str(folder))
    assert (ended.code, "model.layers.1.mlp.up_proj.weight" in ended.err) == (2, True)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:1000])
    ended = run("doctor", str(folder))
    assert (ended.code, "weights" in ended.err) == (2, True)


def test_a_broken_model_fails_the_doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.model import model as module

    normal = module.Model.logits
    monkeypatch.setattr(module.Model, "logits", lambda self, *rest: normal(self, *rest) * 1.01)
    ended = run("doctor", "sequence-sort", "--json")
    assert ended.code == 1
    failed = [check["name"] for check in json.loads(ended.out)["checks"] if not check["passed"]]
    assert "logit parity" in failed
    assert run("score", "sequence-sort", "--task", "sort").code == 2


def test_traceback_only_when_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_TRACEBACK", raising=False)
    assert run("show", "nowhere").code == 2
    with pytest.raises(AssayError):
        run("--traceback", "show", "nowhere")
    assert run("show", "nowhere").code == 2
    monkeypatch.setenv("ASSAY_TRACEBACK", "1")
    with pytest.raises(AssayError):
        run("show", "nowhere")


def test_interrupt_keeps_what_is_finished(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.delenv("ASSAY_TRACEBACK", raising=False)
    monkeypatch.setattr("assay.cli.running.write_page", interrupt)
    ended = run(*SORT, "--n", "2", "--out", "folder")
    assert ended.code == 130
    said = (
        rf"Interrupted; (\d+) of \1 shards are finished and kept in {tmp_path / 'folder'}, and the same command goes on"
    )
    assert re.match(said, ended.err)
    assert not (tmp_path / "folder" / "run.json").exists()
    assert "not finished" in run("show", "folder").err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "shards are there" in run(*SORT, "--n", "2", "--out", "folder").out
    assert not list((tmp_path / "folder").glob("*lock*"))


def test_interrupt_before_anything_is_finished_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("assay.cli.running.load", interrupt)
    ended = run(*SORT, "--n", "2", "--out", "deep/folder")
    assert (ended.code, ended.err) == (130, "Interrupted; nothing was finished yet, so nothing is kept.\n")
    assert list(tmp_path.iterdir()) == []
