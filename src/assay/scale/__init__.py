"""Who carries out the parts of a run: this process, or several on this machine."""

from assay.scale.executor import Advance, Executor, InProcess, Workshop
from assay.scale.local import LocalProcesses

__all__ = ["Advance", "Executor", "InProcess", "LocalProcesses", "Workshop"]
