"""What a person sees of a run: terminal tables and a self-contained page."""

from assay.report.score_page import write_page
from assay.report.screening import print_screening
from assay.report.terminal import print_baseline, print_finished, print_scores
from assay.report.words import describe

__all__ = ["describe", "print_baseline", "print_finished", "print_scores", "print_screening", "write_page"]
