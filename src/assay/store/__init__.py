"""Run folders: finished ones (`files`), and while their run is being computed (`unfinished`)."""

from assay.store.files import RunFiles, finished_run, read_run, require_writable, write_run
from assay.store.unfinished import RunFolder, read_plan

__all__ = ["RunFiles", "RunFolder", "finished_run", "read_plan", "read_run", "require_writable", "write_run"]
