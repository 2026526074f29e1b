"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def require_new(folder: Path) -> None:
    """Refuse what would be overwritten or cannot be made, before the work of which it is to hold the result.

    Raises:
        FileExistsError: `folder` is a file, or a directory that is not empty.
        NotADirectoryError, PermissionError: it is to lie under a file, or where nothing may be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty directory; name a new one")
    above = next(each for each in folder.absolute().parents if each.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{folder} cannot be made: {above} is a file")
    if not os.access(above, os.W_OK):
        raise PermissionError(f"{folder} cannot be made: {above} is not writable")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` at the end; where writing fails, nothing is left.

    Args:
        folder: absent or empty; missing parents are made.

    Raises:
        FileExistsError, NotADirectoryError, PermissionError: see `require_new`.
    """
    folder = folder.resolve()
    require_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
