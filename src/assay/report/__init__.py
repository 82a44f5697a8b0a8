"""What a person sees of a run: terminal tables and a self-contained page."""

from assay.report.html import write_page
from assay.report.terminal import print_baseline, print_scores

__all__ = ["print_baseline", "print_scores", "write_page"]
