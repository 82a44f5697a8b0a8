"""Patching errors: how far each cheap score is from the effect that it stands for, after arXiv 2606.09899."""

from assay.studies.patching_errors.measuring import carry_out
from assay.studies.patching_errors.page import write_page
from assay.studies.patching_errors.settings import DEFAULT, FULL, Setting, Sizes

__all__ = ["DEFAULT", "FULL", "Setting", "Sizes", "carry_out", "write_page"]
