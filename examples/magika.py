"""The file-type classifier of magika (``standard_v3_3``), rebuilt from its ONNX graph.

It reads the first and the last 1024 bytes of a file, filled up with 256 where the file is shorter, and scores
214 file types.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from foldfx.examples.checkpoints import MAGIKA, fetch, restore

BYTES = 2048
BYTE_VALUES = 257
PADDING = 256
BYTE_WIDTH = 64
GROUP = 4
POSITIONS = BYTES // GROUP
CHANNELS = GROUP * BYTE_WIDTH
FEATURES = 512
KERNEL = 5
FILE_TYPES = 214
EPSILON = 1e-6

_GRAPH = "jax2tf_get_logits_"
_MODEL = f"{_GRAPH}/pjit_get_logits_/MagikaV2"
_INITIALIZERS = {
    "embedding.weight": f"{_GRAPH}/Const:0",
    "byte_bias": f"{_MODEL}/Dense_0/Reshape:0",
    "position_norm.weight": f"{_MODEL}/LayerNorm_0/Reshape_2:0",
    "position_norm.bias": f"{_MODEL}/LayerNorm_0/Reshape_3:0",
    "convolution.weight": f"{_MODEL}/Conv_0/transpose_3:0",
    "convolution.bias": "const_fold_opt__209",
    "feature_norm.weight": f"{_MODEL}/LayerNorm_1/Reshape_2:0",
    "feature_norm.bias": f"{_MODEL}/LayerNorm_1/Reshape_3:0",
    "project.weight": f"{_GRAPH}/Const_24:0",
    "project.bias": f"{_MODEL}/Dense_1/Reshape:0",
}


class Classifier(nn.Module):
    """Score the file types of a batch of files.

    The graph multiplies one-hot bytes by a 257 x 64 matrix and adds a bias. The product picks a row of the
    matrix, so an `nn.Embedding` plus the bias, which is what stands here, is the same to the bit.

    The embedding, the bias and the GELU after them see one byte at a time. Laying four bytes side by side
    moves numbers but mixes none. The first step to mix bytes is `position_norm`, which takes each channel's
    mean and variance over the 512 positions.

    The graph's layer norms take the variance as E[x^2] - E[x]^2, which cancels badly where a file is nearly
    constant (mostly padding, say). `nn.LayerNorm` does not, so there the scores differ in the third decimal,
    and these are the ones closer to float64.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTE_VALUES, BYTE_WIDTH)
        self.byte_bias = nn.Parameter(torch.empty(BYTE_WIDTH))
        self.position_norm = nn.LayerNorm(POSITIONS, eps=EPSILON)
        self.convolution = nn.Conv1d(CHANNELS, FEATURES, KERNEL)
        self.feature_norm = nn.LayerNorm(FEATURES, eps=EPSILON)
        self.project = nn.Linear(FEATURES, FILE_TYPES)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the probability of each file type.

        Args:
            ids: Bytes 0 to 255, or 256 for padding, int32 or int64 ``[B, 2048]``.

        Returns:
            Probabilities, float32 ``[B, 214]``, each row adding up to 1.

        Raises:
            IndexError: An id is outside 0 to 256.
            RuntimeError: ``ids`` has another length than 2048.
        """
        byte = functional.gelu(self.embedding(ids) + self.byte_bias, approximate="tanh")  # [B, 2048, 64]
        groups = torch.unflatten(byte, 1, (POSITIONS, GROUP)).flatten(2)  # [B, 512, 256]
        normed = self.position_norm(groups.transpose(1, 2))  # [B, 256, 512]
        convolved = functional.gelu(self.convolution(normed), approximate="tanh")  # [B, 512, 508]
        features = self.feature_norm(convolved.amax(dim=-1))  # [B, 512]
        return functional.softmax(self.project(features), dim=-1)


def load(path: Path | None = None) -> Classifier:
    """Return the classifier with trained weights, in eval mode, float32, on the CPU, without gradients.

    Args:
        path: The package's ``model.onnx``; fetched (and cached) if None.

    Raises:
        ImportError: The onnx package is not installed.
        CheckpointUnavailable: No path is given and the package cannot be had.
        OSError: The file at ``path`` cannot be read.
        KeyError: The graph lacks one of the initialisers.
        RuntimeError: An initialiser has another shape than the package's.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("magika's weights are read with onnx: pip install 'foldfx[hub]'") from error
    graph = onnx.load(fetch(MAGIKA) if path is None else path).graph
    stored = {entry.name: torch.tensor(onnx.numpy_helper.to_array(entry)) for entry in graph.initializer}
    weights = {parameter: stored[initializer] for parameter, initializer in _INITIALIZERS.items()}
    # Stored with axes of length 1 for broadcasting, a 2-D kernel of width 1 and the last matrix transposed.
    squeezed = {parameter: weight.squeeze() for parameter, weight in weights.items()}
    return restore(Classifier, squeezed | {"project.weight": squeezed["project.weight"].T.contiguous()})


def classifier_examples() -> list[tuple[tuple[Tensor], dict[str, Tensor]]]:
    """Return seeded arguments for `Classifier`: int64 ids, batches of 3, 1, 8 and 5, no keyword arguments.

    The last quarter of each row is padding.
    """
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(PADDING, (batch, BYTES), generator=generator) for batch in (3, 1, 8, 5)]
    for ids in batches:
        ids[:, -BYTES // 4 :] = PADDING
    return [((ids,), {}) for ids in batches]
