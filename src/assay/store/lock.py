"""One process a run folder: a lock that the system itself drops when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from assay.errors import StoreError


class FolderLock:
    """An exclusive ``flock`` on a file. Worker processes do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock or refuse at once.

        Raises:
            StoreError: another process holds it, or the file system has no locks.
        """
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_still_there(file):
                    self._file = file
                    with suppress(OSError):  # a full disk; the name of the holder is only a courtesy
                        os.ftruncate(file, 0)
                        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                    return
            except BlockingIOError:
                holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
                raise StoreError(
                    f"{self.path.parent} is in use: {holder} is computing this run. Wait for it, or choose another "
                    "folder."
                ) from None
            except OSError as error:
                raise StoreError(
                    f"Cannot lock {self.path}: {error.strerror}. Choose a folder on a disk of this machine."
                ) from error
            finally:
                if self._file != file:
                    os.close(file)

    def _is_still_there(self, file: int) -> bool:
        """The last holder removes the file; a lock on what was removed keeps nobody out."""
        try:
            return os.path.samestat(os.fstat(file), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the file, then let go."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None
