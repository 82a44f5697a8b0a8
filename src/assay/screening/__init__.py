"""Screen, flag, fix: the few components that matter, found with few exact runs, and what is known about all others."""

from assay.screening.curve import ResponseCurve, response_curve
from assay.screening.result import KIND, ScreenedScores, Stage
from assay.screening.workflow import FIXES, LIMIT, Options, screen

__all__ = ["FIXES", "KIND", "LIMIT", "Options", "ResponseCurve", "ScreenedScores", "Stage", "response_curve", "screen"]
