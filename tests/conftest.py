"""What every test gets: a seed of its own, one thread, and the trained checkpoints where they can be had."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import numpy as np
import pytest
import torch

from foldfx.examples import g2p_en
from foldfx.examples import magika as magika_example
from foldfx.examples.checkpoints import CheckpointUnavailable

Loaded = TypeVar("Loaded")

hypothesis.settings.register_profile("foldfx", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("foldfx")


def pytest_configure() -> None:
    """One thread per process: xdist fills the cores, and sums come out in the same order with it and without."""
    torch.set_num_threads(1)


def seed_of(nodeid: str) -> int:
    """The test's seed: the same in every run, whatever ran before it."""
    return zlib.crc32(nodeid.encode())


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed Python, numpy and torch for this test; the failure report names the seed."""
    value = seed_of(request.node.nodeid)
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is a temporary folder: the command line writes runs to it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("Seed", f"random, numpy and torch were seeded with {seed_of(item.nodeid)}"))
    return report


def load_or_skip(load: Callable[[], Loaded]) -> Loaded:
    """Call a loader of trained weights; where they are out of reach the test is skipped, with the reason.

    With FOLDFX_REQUIRE_CHECKPOINTS=1 it fails instead.
    """
    try:
        return load()
    except (CheckpointUnavailable, ImportError) as error:
        reason = str(error)
    if os.environ.get("FOLDFX_REQUIRE_CHECKPOINTS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[Callable[[], Any]], Any]:
    """`load_or_skip`, for the loaders of other checkpoints."""
    return load_or_skip


@pytest.fixture(scope="session")
def g2p() -> tuple[g2p_en.EncoderStep, g2p_en.DecoderStep]:
    """The trained steps of g2p-en, shared by all tests: copy them before writing to them."""
    return load_or_skip(g2p_en.load)


@pytest.fixture(scope="session")
def magika() -> magika_example.Classifier:
    """The trained classifier of magika, shared by all tests: copy it before writing to it."""
    return load_or_skip(magika_example.load)
