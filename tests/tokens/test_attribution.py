"""Token scores against slow and obvious oracles in float64."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.errors import AssayError, DataError, ModelError, OptionError
from assay.tokens import METHODS, Explanation
from conftest import ids_of, words, wrapped
from families import TINY, VOCABULARY, tiny_tokenizer
from oracles.naive import activation, hooked, logits_of

TEXT, TARGET, AGAINST, BASELINE = [7, 31, 12, 44, 5, 19], 23, 40, 9
UNGATED = ("gpt2", "gpt-neox", "gpt-neox-sequential", "opt", "phi", "starcoder2", "nemotron")


class Naive:
    """A target's logit (less that of a contrast) by plain hooked passes over embeddings."""

    def __init__(self, model: assay.Model, family: str, against: int | None = AGAINST) -> None:
        self.hf, self.family, self.against = model.hf, family, against
        self.text = self.embedded(TEXT)
        self.baseline = self.embedded([BASELINE] * len(TEXT))

    def embedded(self, ids: list[int]) -> torch.Tensor:
        return activation(self.hf, self.family, ids, ("embeddings", 0, None))

    def __call__(self, embeddings: torch.Tensor) -> float:
        with hooked(self.hf, self.family, ("embeddings", 0, None), lambda _: embeddings.unsqueeze(0)):
            logits = logits_of(self.hf, TEXT)[-1]
        return float(logits[TARGET] - (0 if self.against is None else logits[self.against]))


def explained(model: assay.Model, method: str, against: int | None = AGAINST, **options: object) -> Explanation:
    contrast = None if against is None else f" w{against}"
    return assay.explain(model, words(TEXT), f" w{TARGET}", contrast, method, baseline=f"w{BASELINE}", **options)


@pytest.mark.parametrize("family", TINY)
def test_gradient_times_input_is_the_slope_along_each_token(family: str) -> None:
    model = wrapped(family)
    metric, step = Naive(model, family), 1e-5
    expected = []
    for position in range(len(TEXT)):
        change = torch.zeros_like(metric.text)
        change[position] = metric.text[position] - metric.baseline[position]
        expected.append((metric(metric.text + step * change) - metric(metric.text - step * change)) / (2 * step))
    found = explained(model, "gradient-x-input")
    assert np.abs(expected).max() > 0.05, "the test would prove nothing"
    np.testing.assert_allclose(found.scores["gradient-x-input"], expected, rtol=1e-6, atol=1e-7)
    assert found.value == pytest.approx(metric(metric.text), abs=1e-11)
    assert found.baseline_value == pytest.approx(metric(metric.baseline), abs=1e-11)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "opt", "granite", "gpt-oss"])
def test_leave_one_out_is_the_naive_loop(family: str) -> None:
    model = wrapped(family)
    metric = Naive(model, family)
    expected = []
    for position in range(len(TEXT)):
        without = metric.text.clone()
        without[position] = metric.baseline[position]
        expected.append(metric(metric.text) - metric(without))
    scores = explained(model, "leave-one-out").scores["leave-one-out"]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-11)
    for memory in ("16M", "2G"):
        again = explained(model, "leave-one-out", memory=memory).scores["leave-one-out"]
        np.testing.assert_allclose(again, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "cohere"])
def test_integrated_gradients_sum_to_the_difference_up_to_the_gap(family: str) -> None:
    model = wrapped(family)
    method = "integrated-gradients"
    gaps = []
    for steps in (20, 80, 320):
        found = explained(model, method, steps=steps)
        difference = found.value - found.baseline_value
        assert found.gaps[method] == pytest.approx(difference - found.scores[method].sum(), abs=1e-11)
        gaps.append(abs(found.gaps[method]))
    assert gaps[-1] < 1e-3 * abs(difference)
    assert gaps[-1] < gaps[0] / 50


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.rules != "plain"])
def test_rules_are_those_of_a_backward_pass_of_ones_own(name: str) -> None:
    model = wrapped("gemma3")
    metric = Naive(model, "gemma3")
    with assay.backward_rules(model, METHODS[name].rules):
        at = metric.text.clone().requires_grad_(True)
        with hooked(model.hf, "gemma3", ("embeddings", 0, None), lambda _: at.unsqueeze(0)):
            logits = model.hf(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
        (gradient,) = torch.autograd.grad(logits[TARGET] - logits[AGAINST], at)
        with pytest.raises(OptionError, match="leave-one-out is called inside"):
            explained(model, "leave-one-out")
        inside = explained(model, name).scores[name]
    expected = ((metric.text - metric.baseline) * gradient).sum(-1)
    np.testing.assert_allclose(explained(model, name).scores[name], expected, rtol=0, atol=1e-11)
    plain = explained(model, "gradient-x-input").scores["gradient-x-input"]
    assert np.abs(plain - expected.numpy()).max() > 1e-3
    np.testing.assert_array_equal(inside, explained(model, name).scores[name])


def quadratic_model(activation: str = "linear") -> assay.Model:
    """GPT-2 without norms and with a fixed pattern: nothing but the activation function is not linear."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=2, n_positions=16, activation_function=activation,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    hf = GPT2LMHeadModel(config).eval().double()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.normal_(0, 0.4)
        for block in hf.transformer.h:
            block.attn.c_attn.weight[:, :16] = 0
            block.attn.c_attn.bias[:16] = 0
            block.ln_1 = block.ln_2 = nn.Identity()
        hf.transformer.ln_f = nn.Identity()
    return assay.load(hf.eval(), tiny_tokenizer())


def test_integrated_gradients_are_exact_on_a_quadratic_with_one_step() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    model = quadratic_model()
    model.hf.transformer.h[0].mlp.act = Square().eval()
    method = "integrated-gradients"
    one, many = explained(model, method, steps=1), explained(model, method, steps=7)
    assert abs(one.gaps[method]) < 1e-11
    np.testing.assert_allclose(one.scores[method], many.scores[method], rtol=0, atol=1e-11)
    plain = explained(model, "gradient-x-input").scores["gradient-x-input"]
    assert np.abs(plain - one.scores[method]).max() > 0.1, "the test would prove nothing"


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
def test_deeplift_sums_to_the_difference_and_is_what_a_hand_makes_of_it(activation: str) -> None:
    model = quadratic_model(activation)
    found = explained(model, "deeplift")
    assert abs(found.gaps["deeplift"]) < 1e-10
    scores = found.scores["deeplift"]

    hf, block = model.hf, model.hf.transformer.h[0]
    wte, wpe = hf.transformer.wte.weight.detach(), hf.transformer.wpe.weight.detach()[: len(TEXT)]
    read = (hf.lm_head.weight[TARGET] - hf.lm_head.weight[AGAINST]).detach()
    to_value = block.attn.c_attn.weight.detach()[:, 16:] @ block.attn.c_proj.weight.detach()
    w_in, w_out = block.mlp.c_fc.weight.detach(), block.mlp.c_proj.weight.detach()
    value_bias = (
        block.attn.c_attn.bias.detach()[16:] @ block.attn.c_proj.weight.detach() + block.attn.c_proj.bias.detach()
    )

    def middle(ids: list[int]) -> torch.Tensor:
        """The residual stream at the last position after attention, which averages over all positions."""
        x = wte[ids] + wpe
        return x[-1] + x.mean(0) @ to_value + value_bias

    before = [middle(ids) @ w_in + block.mlp.c_fc.bias.detach() for ids in (TEXT, [BASELINE] * len(TEXT))]
    after = [block.mlp.act(h) for h in before]
    multiplier = read + (w_in * ((after[0] - after[1]) / (before[0] - before[1]))) @ (w_out @ read)
    delta = wte[TEXT] - wte[[BASELINE] * len(TEXT)]
    share = torch.eye(len(TEXT), dtype=torch.float64)[-1]
    expected = share * (delta @ multiplier) + delta @ to_value @ multiplier / len(TEXT)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-10)
    plain = explained(model, "gradient-x-input").scores["gradient-x-input"]
    assert np.abs(plain - scores).max() > 1e-3, "the test would prove nothing"


@pytest.mark.parametrize("family", UNGATED)
def test_deeplift_of_small_changes_is_the_gradient(family: str) -> None:
    """Rescale's quotients tend to derivatives; values stay what they are."""
    model = wrapped(family)
    with torch.no_grad():
        weight = model.embedding.weight
        weight[BASELINE] = weight[TEXT[2]]
        for token in set(TEXT):
            weight[token] = weight[BASELINE] + 1e-5 * (weight[token] - weight[BASELINE])
    found = explained(model, "deeplift,gradient-x-input")
    deeplift, gradient = found.scores["deeplift"], found.scores["gradient-x-input"]
    assert np.abs(gradient).max() > 1e-7
    np.testing.assert_allclose(deeplift, gradient, rtol=0, atol=1e-3 * np.abs(gradient).max())


def test_deeplift_refuses_gates_by_name() -> None:
    for family in ("llama", "phi3", "mixtral"):
        with pytest.raises(ModelError, match=r"deeplift is defined for MLPs without a gate; (Llama|Phi-3|Mixtral)"):
            explained(wrapped(family), "deeplift")


def test_a_target_of_several_tokens_is_teacher_forced() -> None:
    model = wrapped("qwen2")
    method, step = "gradient-x-input", 1e-5
    target, against = [23, 8, 23], [40, 2]

    def metric(embeddings: torch.Tensor, answer: list[int]) -> float:
        tail = activation(model.hf, "qwen2", answer[:-1], ("embeddings", 0, None))
        whole = torch.cat([embeddings, tail])
        with hooked(model.hf, "qwen2", ("embeddings", 0, None), lambda _: whole.unsqueeze(0)):
            log_probs = logits_of(model.hf, TEXT + answer[:-1]).log_softmax(-1)
        return float(sum(log_probs[len(TEXT) - 1 + i, token] for i, token in enumerate(answer)))

    text = activation(model.hf, "qwen2", TEXT, ("embeddings", 0, None))
    baseline = activation(model.hf, "qwen2", [BASELINE] * len(TEXT), ("embeddings", 0, None))
    for contrast, unit in ((None, "log-prob"), (against, "log-prob-diff")):
        found = assay.explain(
            model, words(TEXT), " " + words(target), contrast and " " + words(contrast),
            [method, "leave-one-out"], baseline=f"w{BASELINE}",
        )  # fmt: skip
        assert found.metric == unit
        assert len(found.scores[method]) == len(TEXT)

        def value(at: torch.Tensor, contrast: list[int] | None = contrast) -> float:
            return metric(at, target) - (metric(at, contrast) if contrast else 0.0)

        assert found.value == pytest.approx(value(text), abs=1e-11)
        for position in range(len(TEXT)):
            change = torch.zeros_like(text)
            change[position] = text[position] - baseline[position]
            slope = (value(text + step * change) - value(text - step * change)) / (2 * step)
            assert found.scores[method][position] == pytest.approx(slope, rel=1e-6, abs=1e-7)
            assert found.scores["leave-one-out"][position] == pytest.approx(
                value(text) - value(text - change), abs=1e-11
            )


def test_the_models_own_next_token_is_the_default_and_said_to_be() -> None:
    model = wrapped("llama")
    best = int(logits_of(model.hf, TEXT)[-1].argmax())
    found = assay.explain(model, words(TEXT), method="leave-one-out", baseline="mean")
    assert found.target_ids == (best,)
    assert found.target_is_models_own
    assert not explained(model, "leave-one-out").target_is_models_own


def test_baselines() -> None:
    model = wrapped("llama")
    mean = model.embedding.weight.mean(0, keepdim=True).expand(len(TEXT), -1)
    other = [3, 3, 1, 2, 8, 9]
    for given, expected in (("mean", mean), (words(other), model.embedding.weight[other])):
        found = assay.explain(model, words(TEXT), f" w{TARGET}", f" w{AGAINST}", "leave-one-out", baseline=given)
        assert found.baseline_value == pytest.approx(Naive(model, "llama")(expected.detach()), abs=1e-11)
    for given, message in (
        ("space", "no token for a space"),
        ("pad", "no padding token"),
        ("", "is empty"),
        ("nonsense", "does not know"),
        ("w1 w2", "the baseline is 2 tokens, the text 6"),
    ):
        with pytest.raises(AssayError, match=message):
            assay.explain(model, words(TEXT), method="leave-one-out", baseline=given)


def test_special_tokens_stay_in_the_baseline_and_score_nothing() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "w7"})
    model = assay.load(wrapped("llama").hf, tokenizer)
    for method in ("gradient-x-input", "leave-one-out", "random", "integrated-gradients"):
        found = assay.explain(model, words(TEXT), f" w{TARGET}", method=method, baseline=f"w{BASELINE}")
        assert found.fixed == (True, False, False, False, False, False)
        assert found.scores[method][0] == 0
        assert np.abs(found.scores[method][1:]).min() > 0


def test_random_scores_follow_seed_and_number() -> None:
    model = wrapped("gpt2")
    questions = [assay.Question(words(TEXT))] * 2
    first = assay.explain_all(model, questions, "random", baseline="mean")
    again = assay.explain_all(model, questions, "random", baseline="mean")
    other = assay.explain_all(model, questions, "random", baseline="mean", seed=1)
    np.testing.assert_array_equal(first[1].scores["random"], again[1].scores["random"])
    assert not np.array_equal(first[0].scores["random"], first[1].scores["random"])
    assert not np.array_equal(first[0].scores["random"], other[0].scores["random"])


@pytest.mark.parametrize(
    ("text", "target", "against", "message"),
    [
        (words(TEXT), "", None, "target is empty, so it has no tokens"),
        (words(TEXT), " ", None, "^text 1: the answer ' ' does not begin a new token"),
        ("", None, None, "text is empty"),
        ("w5", None, None, "is 1 token; a comparison"),
        (words([1] * 40), None, None, "40 tokens long; .* takes 32 at most"),
        (words([1] * 31), " w2 w3 w4", None, "^text 1 is 33 tokens long; .* takes 32 at most"),
        ("paris", " w3", None, "^text 1 has words that this tokenizer does not know"),
        (words(TEXT), " w3", " w3", "target and against are the same"),
        (words(TEXT), " paris", None, "does not know"),
        (7, None, None, "text must be a string, not int"),
        (None, None, None, "text must be a string, not NoneType"),
        ("w1 \ud800", None, None, "^text 1: text holds half a surrogate pair"),
        (words(TEXT), "\ud800", None, "^text 1: target holds half a surrogate pair"),
        (words(TEXT), " w3", "\udcff", "^text 1: against holds half a surrogate pair"),
    ],
)
def test_texts_that_cannot_be_used_are_refused(
    text: str, target: str | None, against: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        assay.explain(wrapped("llama"), text, target, against, "leave-one-out", baseline="mean")


def test_options_that_cannot_be_used_are_refused() -> None:
    model = wrapped("llama")
    for method, message in (
        ("gimm", "Did you mean 'gim'"),
        ("", "at least one method"),
        ("gim,gim", "each once"),
    ):
        with pytest.raises(OptionError, match=message):
            explained(model, method)
    for method in (3, None, [3], {"gim": 1}):
        with pytest.raises(OptionError, match=r"Methods are names|no token attribution method 3\. Choose one of gim"):
            explained(model, method)
    for memory in (5, None, "lots"):
        with pytest.raises(OptionError, match="--memory takes a size"):
            explained(model, "random", memory=memory)
    for seed in (-1, "x", 1.5, True, None):
        with pytest.raises(OptionError, match="The seed must be a whole number from 0 on"):
            explained(model, "random", seed=seed)
    for baseline, message in (
        (5, "a text, not 5"),
        (None, "a text, not None"),
        ("\ud800", "half a surrogate"),
        ("", "empty"),
    ):
        with pytest.raises(OptionError, match=message):
            assay.explain(model, words(TEXT), baseline=baseline)
    with pytest.raises(OptionError, match=r"explain takes no option 'methods'\. Did you mean 'method'"):
        assay.explain(model, words(TEXT), methods=["gim"])
    with pytest.raises(
        OptionError, match=r"explain takes no option 'rules'; a method brings its own backward rules: gim"
    ):
        assay.explain(model, words(TEXT), rules="gim")
    with pytest.raises(OptionError, match=r"explain_all takes no option 'method'\. Did you mean 'methods'"):
        assay.explain_all(model, [assay.Question(words(TEXT))], method="gim")
    with pytest.raises(OptionError, match=r"must be an assay\.Model"):
        assay.explain(model.hf, words(TEXT))
    assert {"baseline", "chat", "steps", "seed", "memory"} <= set(signature(assay.explain).parameters)
    for questions, message in (
        ("a b c", "a list of assay.Question, not 'a b c'"),
        ([("a b c",)], r"text 1 is \('a b c',\)\. Write assay.Question"),
        ([], "There are no texts"),
        (None, "a list of assay.Question"),
    ):
        with pytest.raises(DataError, match=message):
            assay.explain_all(model, questions)
    with pytest.raises(OptionError, match="at least 1 step"):
        explained(model, "integrated-gradients", steps=0)
    with pytest.raises(OptionError, match="no chat template"):
        explained(model, "leave-one-out", chat=True)


@pytest.mark.parametrize("method", ["random", "gim", "integrated-gradients", "leave-one-out"])
@pytest.mark.parametrize("target", [None, f" w{TARGET}"])
def test_a_model_that_gives_no_numbers_is_not_explained(method: str, target: str | None) -> None:
    model = wrapped("llama", torch.float32)
    model.hf.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(
        DataError, match=r"^text 1: the .*logit.* is not finite\. Look for weights that are infinite or NaN"
    ):
        assay.explain(model, words(TEXT), target, method=method, baseline="mean")


def test_a_path_through_infinity_is_refused() -> None:
    """Text and baseline are fine; on the way between them the model is not."""
    model = wrapped("llama", torch.float32)

    ends = model.hf.get_input_embeddings().weight.data
    ends[TEXT, 0], ends[BASELINE, 0] = 1.0, -1.0
    model.hf.model.layers[0].register_forward_pre_hook(
        lambda _, args: (torch.where(args[0][..., :1].abs() < 0.2, torch.inf, args[0]), *args[1:])
    )
    explained(model, "leave-one-out")
    for steps in (3, 50):
        with pytest.raises(
            DataError, match=r"^text 1: on the way from the baseline a (value|slope) of .* is not finite"
        ):
            explained(model, "integrated-gradients", steps=steps)


def test_the_model_is_left_as_it_was() -> None:
    model = wrapped("gpt2")
    attention, weights = model.hf.config._attn_implementation, model.weight_hash
    explained(model, ",".join(METHODS))
    assert model.hf.config._attn_implementation == attention
    assert model.weight_hash == weights
    assert all(parameter.requires_grad for parameter in model.hf.parameters())
    assert not model.has_foreign_hooks
    assert ids_of(words(TEXT)) == TEXT
