"""Which tokens of a prompt drive what comes next, and how faithful such scores are to the model."""

from assay.tokens.attribution import explain, explain_all
from assay.tokens.faithfulness import Faithfulness
from assay.tokens.methods import METHODS
from assay.tokens.questions import Question, read_questions
from assay.tokens.result import Explanation, Explanations

__all__ = [
    "METHODS", "Explanation", "Explanations", "Faithfulness", "Question", "explain", "explain_all", "read_questions",
]  # fmt: skip
