"""Letters to phonemes with the trained GRUs of g2p-en.

The encoder reads a word letter by letter, the decoder writes phonemes one by one. Each module here is one
time step. Its embedding and `input_gates` depend on the token alone; the gate arithmetic then mixes their
result with the hidden state. The loops over time stay outside, in `pronounce`.
"""

import random
import string
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foldfx.examples.checkpoints import G2P_EN, fetch, restore

GRAPHEMES = ("<pad>", "<unk>", "</s>", *string.ascii_lowercase)
# fmt: off
PHONEMES = (
    "<pad>", "<unk>", "<s>", "</s>",
    "AA0", "AA1", "AA2", "AE0", "AE1", "AE2", "AH0", "AH1", "AH2", "AO0", "AO1", "AO2", "AW0", "AW1", "AW2",
    "AY0", "AY1", "AY2", "B", "CH", "D", "DH", "EH0", "EH1", "EH2", "ER0", "ER1", "ER2", "EY0", "EY1", "EY2",
    "F", "G", "HH", "IH0", "IH1", "IH2", "IY0", "IY1", "IY2", "JH", "K", "L", "M", "N", "NG",
    "OW0", "OW1", "OW2", "OY0", "OY1", "OY2", "P", "R", "S", "SH", "T", "TH", "UH0", "UH1", "UH2",
    "UW", "UW0", "UW1", "UW2", "V", "W", "Y", "Z", "ZH",
)
# fmt: on
WIDTH = 256
MAX_PHONEMES = 20

_GRAPHEME_IDS = {grapheme: index for index, grapheme in enumerate(GRAPHEMES)}
_UNKNOWN = GRAPHEMES.index("<unk>")
_WORD_END = GRAPHEMES.index("</s>")
_START = PHONEMES.index("<s>")
_STOP = PHONEMES.index("</s>")

Encoder = Callable[[Tensor, Tensor], Tensor]
Decoder = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Example = tuple[tuple[Tensor, Tensor], dict[str, Tensor]]


class EncoderStep(nn.Module):
    """Read one letter of each word of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(GRAPHEMES), WIDTH)
        self.input_gates = nn.Linear(WIDTH, 3 * WIDTH)
        self.hidden_gates = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Return the next hidden state.

        Args:
            ids: Indices into `GRAPHEMES`, int64 ``[B]``.
            hidden: Hidden state, float32 ``[B, 256]``.

        Returns:
            Hidden state, float32 ``[B, 256]``.
        """
        return _gru(self.input_gates(self.embedding(ids)), self.hidden_gates(hidden), hidden)


class DecoderStep(nn.Module):
    """Write one phoneme of each word of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(PHONEMES), WIDTH)
        self.input_gates = nn.Linear(WIDTH, 3 * WIDTH)
        self.hidden_gates = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, len(PHONEMES))

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the next phoneme and the next hidden state.

        Args:
            ids: The phonemes written last, indices into `PHONEMES`, int64 ``[B]``.
            hidden: Hidden state, float32 ``[B, 256]``.

        Returns:
            Logits, float32 ``[B, 74]``, and the hidden state, float32 ``[B, 256]``.
        """
        hidden = _gru(self.input_gates(self.embedding(ids)), self.hidden_gates(hidden), hidden)
        return self.project(hidden), hidden


def _gru(of_input: Tensor, of_hidden: Tensor, hidden: Tensor) -> Tensor:
    """One GRU update from both sides' gate inputs, each ``[B, 3 * 256]`` in the order reset, update, new."""
    input_reset, input_update, input_new = of_input.chunk(3, dim=-1)
    hidden_reset, hidden_update, hidden_new = of_hidden.chunk(3, dim=-1)
    reset = torch.sigmoid(input_reset + hidden_reset)
    update = torch.sigmoid(input_update + hidden_update)
    new = torch.tanh(input_new + reset * hidden_new)
    return (1 - update) * new + update * hidden


def load(path: Path | None = None) -> tuple[EncoderStep, DecoderStep]:
    """Return both steps with trained weights, in eval mode, float32, on the CPU, without gradients.

    Args:
        path: The package's ``checkpoint20.npz``; fetched (and cached) if None.

    Raises:
        CheckpointUnavailable: No path is given and the package cannot be had.
        OSError: The file at ``path`` cannot be read.
        KeyError: The file lacks one of the package's arrays.
        RuntimeError: An array has another shape than the package's.
    """
    with np.load(fetch(G2P_EN) if path is None else path) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}

    def step_weights(side: str) -> dict[str, Tensor]:
        return {
            "embedding.weight": arrays[f"{side}_emb"],
            "input_gates.weight": arrays[f"{side}_w_ih"],
            "input_gates.bias": arrays[f"{side}_b_ih"],
            "hidden_gates.weight": arrays[f"{side}_w_hh"],
            "hidden_gates.bias": arrays[f"{side}_b_hh"],
        }

    projection = {"project.weight": arrays["fc_w"], "project.bias": arrays["fc_b"]}
    return restore(EncoderStep, step_weights("enc")), restore(DecoderStep, step_weights("dec") | projection)


def pronounce(words: Sequence[str], encoder: Encoder, decoder: Decoder) -> list[list[str]]:
    """Predict each word's phonemes greedily, all words as one batch.

    A word's hidden state stands still once its ``</s>`` is read, so every word gets what it would get alone.

    Args:
        words: Words in the letters a to z; any other character, a capital too, is read as ``<unk>``.
        encoder: An `EncoderStep` or a function that does the same.
        decoder: A `DecoderStep` or a function that does the same.

    Returns:
        One list of at most 20 members of `PHONEMES` for each word.
    """
    if not words:
        return []
    hidden = _encode(words, encoder)
    ids = torch.full((len(words),), _START)
    stopped = torch.zeros(len(words), dtype=torch.bool)
    written: list[Tensor] = []
    while len(written) < MAX_PHONEMES and not stopped.all():
        logits, hidden = decoder(ids, hidden)
        ids = logits.argmax(dim=-1)
        stopped |= ids == _STOP
        written.append(ids)
    rows = torch.stack(written, dim=1).tolist()
    return [[PHONEMES[index] for index in takewhile(lambda index: index != _STOP, row)] for row in rows]


def _encode(words: Sequence[str], encoder: Encoder) -> Tensor:
    """Return the hidden state after each word's ``</s>``, float32 ``[B, 256]``."""
    spelt = [[_GRAPHEME_IDS.get(letter, _UNKNOWN) for letter in word] + [_WORD_END] for word in words]
    lengths = torch.tensor([len(ids) for ids in spelt])
    steps = pad_sequence([torch.tensor(ids) for ids in spelt])
    hidden = torch.zeros(len(words), WIDTH)
    for time, ids in enumerate(steps):
        unfinished = (time < lengths).unsqueeze(-1)
        hidden = torch.where(unfinished, encoder(ids, hidden), hidden)
    return hidden


def make_encoder() -> EncoderStep:
    """Return the trained encoder step; raises what `load` raises."""
    return load()[0]


def make_decoder() -> DecoderStep:
    """Return the trained decoder step; raises what `load` raises."""
    return load()[1]


def encoder_examples() -> list[Example]:
    """Return seeded arguments for `EncoderStep`: batches of 3, 1, 8 and 5, each with no keyword arguments."""
    return _examples(len(GRAPHEMES))


def decoder_examples() -> list[Example]:
    """Return seeded arguments for `DecoderStep`: batches of 3, 1, 8 and 5, each with no keyword arguments."""
    return _examples(len(PHONEMES))


def _examples(tokens: int) -> list[Example]:
    """Pairs of int64 ids ``[B]`` below ``tokens`` and float32 hidden states ``[B, 256]`` in [-1, 1)."""
    generator = torch.Generator().manual_seed(0)

    def example(batch: int) -> Example:
        ids = torch.randint(tokens, (batch,), generator=generator)
        hidden = 2 * torch.rand(batch, WIDTH, generator=generator) - 1
        return (ids, hidden), {}

    return [example(batch) for batch in (3, 1, 8, 5)]


def random_words(n: int, seed: int) -> list[str]:
    """Return ``n`` words of 1 to 12 random lower-case letters, the same for the same seed."""
    source = random.Random(seed)
    return ["".join(source.choices(string.ascii_lowercase, k=source.randint(1, 12))) for _ in range(n)]
