"""Room for results: in memory while they are small, in a temporary file when they are not."""

from __future__ import annotations

import os
import tempfile

import numpy as np

from dspt.internal.files import told

# Bytes beyond which an array lies in a file.
MOST_IN_MEMORY = 2**30


def scratch(*shape: int) -> np.ndarray:
    """Return a float32 array of this shape that holds nothing of worth yet.

    One above `MOST_IN_MEMORY` is a map of a file in the folder of temporary files ($TMPDIR), so that the system can
    write it out when memory is short; unless that folder is itself in memory (tmpfs). The file has no name, and is gone
    with the array, whatever happens.
    """
    size = 4 * int(np.prod(shape))
    if size <= MOST_IN_MEMORY:
        return np.empty(shape, np.float32)
    where = f"the folder of temporary files, {tempfile.gettempdir()}"
    with told(where, "set TMPDIR to a folder on a larger disk"), tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
            # Room that is not there must be an error now, and not a crash when a page is written.
            os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, np.float32, "r+", shape=shape)
