"""Screen, flag, fix: the few components that matter, found with few exact runs, and what is known about all others."""

from assay.screening.curve import ResponseCurve, response_curve
from assay.screening.result import KIND, ScreenedScores, Stage
from assay.screening.workflow import FIXES, Options, screen

__all__ = ["FIXES", "KIND", "Options", "ResponseCurve", "ScreenedScores", "Stage", "response_curve", "screen"]
