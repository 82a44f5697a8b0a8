"""Prompt pairs, the tasks that make them, and the metrics that read a model's answer."""

from assay.data import tasks
from assay.data.metrics import METRICS, Metric
from assay.data.pairs import PromptPair, PromptPairs
from assay.data.readers import read_jsonl, read_pairs

__all__ = ["METRICS", "Metric", "PromptPair", "PromptPairs", "read_jsonl", "read_pairs", "tasks"]
