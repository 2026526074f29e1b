"""Random models: no claim is unsound, every compiled model computes what the original does, and none is changed.

FOLDFX_FUZZ_MODELS (200) is how many models are run, over all parts; FOLDFX_FUZZ_SEED (0) which ones. `make fuzz` runs
5,000 and prints what they did. Failures print a module ready to paste; such modules lie in corpus/ and are replayed always.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from .grammar import Model, Setting, models, settings, together
from .trial import Tally, Trial

MODELS = int(os.environ.get("FOLDFX_FUZZ_MODELS", "200"))
SEED = int(os.environ.get("FOLDFX_FUZZ_SEED", "0"))
PARTS = 4
COMPLETE = 0.95
TOGETHER = 10
"""Models captured together, at most; half as many on average."""

SHRINKING = 90
"""Seconds after which a failure is shown as small as it is by then."""

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.py"))


def attack(seed: int, tally: Tally) -> None:
    """A few sources of random models; a failure is shrunk."""

    failed: dict[str, AssertionError] = {}
    began = time.monotonic()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=6,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        print_blob=False,
        phases=[Phase.generate, Phase.shrink],  # to explain a failure, too, every line would be traced
    )
    @hypothesis.given(settings, st.lists(models, min_size=1, max_size=TOGETHER))
    def sources(setting: Setting, batch: list[Model]) -> None:
        choices = repr((setting, batch))
        if choices in failed:
            raise failed[choices]
        if failed and time.monotonic() - began > SHRINKING:  # not even written: there may be hundreds more to try
            return
        try:
            Trial(together(setting, batch), Tally() if failed else tally, seed % 2**31).check()
        except AssertionError as error:
            failed[choices] = error
            raise

    sources()


@pytest.mark.parametrize("part", range(PARTS))
def test_random_models(part: int, seed: int) -> None:
    tally = Tally()
    while tally.models * PARTS < MODELS:
        attack(zlib.crc32(repr((seed, SEED, tally.models)).encode()), tally)
    print(tally)
    assert tally.models < 50 or tally.completeness >= COMPLETE, str(tally)


@pytest.mark.parametrize("case", CORPUS, ids=[path.stem for path in CORPUS])
def test_past_failures(case: Path) -> None:
    Trial(case.read_text(), Tally()).check()
