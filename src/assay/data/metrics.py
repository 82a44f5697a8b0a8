"""What is measured: one number per example, read off the logits at the answer's positions.

Axes: N rows (an example is measured on one or two of them), P answer positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from assay.errors import OptionError, instead_of


@dataclass(frozen=True)
class Targets:
    """Where and what to read, for rows of one length.

    ``sign`` is -1 on rows that are teacher-forced with the wrong answer, else 1. ``wrongs`` holds the
    wrong answer's tokens where both answers are single tokens and share a row, else -1. Only where P is 1 does an
    answer have several members, each a token; smaller sets are filled up with -1.
    """

    positions: Tensor
    """(N, P)"""
    answers: Tensor
    """(N, P, A): every member of the answer."""
    wrongs: Tensor
    """(N, P, W): every member of the wrong answer."""
    sign: Tensor
    """(N,)"""
    clean: Tensor | None = None
    """(N, P, V) log-probabilities of the clean run, for metrics that compare with it."""

    def rows(self, index: Tensor) -> Targets:
        return Targets(
            positions=self.positions[index],
            answers=self.answers[index],
            wrongs=self.wrongs[index],
            sign=self.sign[index],
            clean=None if self.clean is None else self.clean[index],
        )

    @property
    def tokens(self) -> Tensor:
        """(N, P): the answer's tokens; of a set, its first member."""
        return self.answers[..., 0]

    @property
    def wrong(self) -> Tensor:
        """(N, P): the wrong answer's token where it shares the row, else -1; of a set, its first member."""
        return self.wrongs[..., 0]

    @property
    def pair(self) -> Tensor:
        """(N, P, 2): the answer's and the wrong answer's token (the answer's again where there is none)."""
        return torch.stack([self.tokens, torch.where(self.wrong < 0, self.tokens, self.wrong)], dim=-1)


@dataclass(frozen=True)
class Metric:
    """A scalar of the logits for each row, higher when the answer is more likely; ``row_values`` may be your own:

    >>> def above_mean(logits, targets):  # logits (N, P, V): N rows, P answer positions, V tokens
    ...     answer = logits.gather(-1, targets.tokens.unsqueeze(-1)).squeeze(-1)  # targets.tokens is (N, P)
    ...     return (answer - logits.mean(-1)).sum(-1)  # (N,)
    >>> mine = Metric("above-mean", "logits", "answer above the mean", "answer", "vocabulary", True, above_mean)

    ``answers`` says what is read: ``single`` compares two single tokens; ``answer`` reads the answer
    alone, teacher-forced; ``both`` subtracts the wrong answer's value, on a row of its own when an
    answer has several tokens. ``reads`` says which logits are needed. A metric that sees only
    ``targets.tokens`` refuses sets of answers; one that reads ``targets.answers``, (N, P, A) with -1 where a set
    has fewer members, and ``targets.wrongs`` says ``takes_sets=True``.
    """

    name: str
    unit: str
    description: str
    answers: Literal["single", "answer", "both"]
    reads: Literal["tokens", "vocabulary"]
    differentiable: bool
    row_values: Callable[[Tensor, Targets], Tensor]
    """(N, P, 2) or (N, P, V) logits and targets to (N,); an example's value is the sum over its rows."""
    compares_with_clean: bool = False
    """Needs the clean run's distribution; 0 and flat there, so without a slope."""
    takes_sets: bool = False
    """Answers may be sets of single tokens."""

    def values(self, logits: Tensor, targets: Targets) -> Tensor:
        """`row_values`, checked.

        Raises:
            OptionError: not one value a row, as a metric of a user's own may give.
        """
        found = self.row_values(logits, targets)
        rows = (logits.shape[0],)
        if not isinstance(found, Tensor) or tuple(found.shape) != rows:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise OptionError(
                f"The metric {self.name} gives {shape} for logits of shape {tuple(logits.shape)}; it must give one "
                f"value for each row, {rows}. Sum over positions and vocabulary only."
            )
        if not found.is_floating_point():
            raise OptionError(f"The metric {self.name} gives {found.dtype}; it must give floating-point numbers.")
        if self.differentiable and logits.requires_grad and not found.requires_grad:
            raise OptionError(f"The metric {self.name} has no gradient; say so with differentiable=False.")
        return found


def _logit_difference(logits: Tensor, targets: Targets) -> Tensor:
    return (logits[..., 0] - logits[..., 1]).sum(-1)


def _log_probs(logits: Tensor, members: Tensor) -> Tensor:
    """(N, P): log of the summed probability of members (N, P, A)."""
    found = logits.gather(-1, members.clamp(min=0)).masked_fill(members < 0, -torch.inf)
    return found.logsumexp(-1) - logits.logsumexp(-1)


def _wrong_log_probs(logits: Tensor, targets: Targets) -> Tensor:
    """(N, P): of the wrong answer; on rows without one the answer's first token stands in, for finite gradients."""
    stand_in = targets.tokens.unsqueeze(-1).expand_as(targets.wrongs)
    return _log_probs(logits, torch.where(targets.wrongs[..., :1] < 0, stand_in, targets.wrongs))


def _sequence_log_prob(logits: Tensor, targets: Targets) -> Tensor:
    return _log_probs(logits, targets.answers).sum(-1)


def _log_prob_difference(logits: Tensor, targets: Targets) -> Tensor:
    answer, wrong = _log_probs(logits, targets.answers), _wrong_log_probs(logits, targets)
    return torch.where(targets.wrong[:, 0] >= 0, (answer - wrong).sum(-1), targets.sign * answer.sum(-1))


def _prob_difference(logits: Tensor, targets: Targets) -> Tensor:
    answer, wrong = _log_probs(logits, targets.answers), _wrong_log_probs(logits, targets)
    shared = (answer.exp() - wrong.exp()).sum(-1)
    return torch.where(targets.wrong[:, 0] >= 0, shared, targets.sign * answer.sum(-1).exp())


def _negative_divergence(logits: Tensor, targets: Targets) -> Tensor:
    assert targets.clean is not None
    log_probs = logits.log_softmax(-1)
    return -(targets.clean.exp() * (targets.clean - log_probs)).sum((-1, -2))


def _exact_match(logits: Tensor, targets: Targets) -> Tensor:
    return (logits.argmax(-1, keepdim=True) == targets.answers).any(-1).all(-1).to(logits.dtype)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "logit-diff",
            "logits",
            "logit of the answer minus logit of the wrong answer, both single tokens",
            answers="single",
            reads="tokens",
            differentiable=True,
            row_values=_logit_difference,
        ),
        Metric(
            "log-prob",
            "nats",
            "log-probability of the answer, summed over its tokens, teacher-forced; of a set: of any of its members",
            answers="answer",
            reads="vocabulary",
            differentiable=True,
            row_values=_sequence_log_prob,
            takes_sets=True,
        ),
        Metric(
            "log-prob-diff",
            "nats",
            "log-probability of the answer minus that of the wrong answer, each summed over its tokens",
            answers="both",
            reads="vocabulary",
            differentiable=True,
            row_values=_log_prob_difference,
            takes_sets=True,
        ),
        Metric(
            "prob-diff",
            "probability",
            "probability of the answer minus that of the wrong answer, each summed over a set's members",
            answers="both",
            reads="vocabulary",
            differentiable=True,
            row_values=_prob_difference,
            takes_sets=True,
        ),
        Metric(
            "kl",
            "nats",
            "minus the KL divergence of the answer's distribution from the clean run's, summed over its tokens",
            answers="answer",
            reads="vocabulary",
            differentiable=True,
            row_values=_negative_divergence,
            compares_with_clean=True,
            takes_sets=True,
        ),
        Metric(
            "exact-match",
            "fraction",
            "1 if greedy decoding gives the whole answer or a member of the set, else 0 (for interventions; it has no "
            "gradient)",
            answers="answer",
            reads="vocabulary",
            differentiable=False,
            row_values=_exact_match,
            takes_sets=True,
        ),
    )
}


def as_metric(metric: str | Metric) -> Metric:
    """A metric by name, or a user's own as it is.

    Raises:
        OptionError: no such name, not a metric at all, or a metric of one's own under a name that is taken.
    """
    if isinstance(metric, str):
        return metric_named(metric)
    if not isinstance(metric, Metric):
        raise OptionError(
            f"metric is a name (assay list metrics) or an assay.Metric, not a {type(metric).__name__}. To measure by a "
            "function of your own, give it to an assay.Metric: help(assay.Metric) and docs/metrics.md show how."
        )
    if METRICS.get(metric.name, metric) is not metric:
        raise OptionError(f"{metric.name!r} is the name of another metric. Give yours a name of its own.")
    return metric


def metric_named(name: str) -> Metric:
    if name not in METRICS:
        raise OptionError(f"There is no metric {name!r}. {instead_of(name, METRICS)}")
    return METRICS[name]
