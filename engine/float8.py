"""A base that was published in 8-bit floats (DeepSeek-V3, Mistral Large 4), kept as it is on any device and layout.

Each block of a weight has a scale of its own. transformers' layers for such weights compute by kernels that some CUDA
devices have, with inputs rounded to 8 bits too, and unpack the whole base to twice its size on all others. Here weights
stay as they were published, and a layer unpacks its own while it computes, and once more for its gradients: the same
numbers on every device, and those of the base as stock transformers unpacks it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Embedding, FP8Experts, FP8Linear
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from engine.failure import Failure
from engine.products import grouped, packed
from engine.published import FLOAT8, in_float8

UNPACKED_BYTES = 2**30  # of experts that are unpacked at a time, at most
STRIP_BYTES = 2**27  # of one weight that are in float32 at a time, about
Block = tuple[int, int] | None  # rows and columns that share a scale; None: the whole weight does


class _Kept(FineGrainedFP8HfQuantizer):
    """transformers' loading of such a base, on any device."""

    def validate_environment(self, *_: Any, **__: Any) -> None:
        """Nothing is asked of the device: the layers' own products are not used."""


@contextmanager
def kept() -> Iterator[None]:
    """Inside the block transformers loads such a base as it is, also where the device has no kernels for it."""
    stock = AUTO_QUANTIZER_MAPPING[FLOAT8]
    AUTO_QUANTIZER_MAPPING[FLOAT8] = _Kept
    try:
        yield
    finally:
        AUTO_QUANTIZER_MAPPING[FLOAT8] = stock


def unpacking(config: Mapping[str, Any]) -> dict[str, Any]:
    """What stock `from_pretrained` is told to unpack such a base whole; nothing for any other."""
    return {"quantization_config": FineGrainedFP8Config(dequantize=True)} if in_float8(config) else {}


def register(name: str, forward: Callable[..., Tensor]) -> None:
    """Offer an experts' forward pass by this name to the experts of such a base too."""
    ALL_FP8_EXPERTS_FUNCTIONS.register(name, forward)


def install(model: nn.Module) -> int:
    """Give every layer of such a base the forward pass that unpacks; how many. Raises Failure for one that has none."""
    count = 0
    for name, layer in model.named_modules():
        if type(layer) is FP8Linear:
            layer.__class__ = UnpackedLinear
            count += 1
        elif (isinstance(layer, FP8Linear) or _is_half_a_byte(layer)) and not isinstance(layer, FP8Embedding):
            raise Failure(
                "format_not_known",
                f"{name} of this base keeps its weights in a form that Atelier cannot unpack.",
                ["Choose a release of the model in bfloat16."],
            )
    return count


def _is_half_a_byte(layer: nn.Module) -> bool:
    return isinstance(layer, FP8Experts) and layer.down_proj.dtype == torch.int8


def unpack(weight_OI: Tensor, scale: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """One weight in this precision, multiplied in float32 as transformers does, some rows at a time."""
    outputs, inputs = weight_OI.shape
    high, wide = block or (outputs, inputs)
    scale = scale.float().reshape(-(-outputs // high), -(-inputs // wide))
    some = max(1, STRIP_BYTES // (4 * inputs * high))  # rows of blocks
    out_OI = weight_OI.new_empty(weight_OI.shape, dtype=dtype)
    for first in range(0, len(scale), some):
        rows = slice(first * high, (first + some) * high)
        small = weight_OI[rows]
        spread = scale[first : first + some].repeat_interleave(high, 0)[: len(small)]
        out_OI[rows] = small.float().mul_(spread.repeat_interleave(wide, 1)[:, :inputs])
    return out_OI


class UnpackedLinear(FP8Linear):
    """A frozen linear layer of such a base; made out of transformers' own by `install`."""

    def forward(self, x: Tensor) -> Tensor:
        """X (..., I) -> (..., O) in x's own precision."""
        out = packed(x, self._unpack, self.weight, self.weight_scale_inv)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _unpack(self, weight_OI: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return unpack(weight_OI, scale, self.block_size, dtype)


class _Grouped(torch.autograd.Function):
    """`grouped` by frozen matrices (E, O, I) transposed, of which a few are unpacked at a time."""

    @staticmethod
    def forward(ctx: Any, rows_SI: Tensor, weight_EOI: Tensor, scale: Tensor, block: Block, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(weight_EOI, scale, ends_E)
        ctx.block = block
        return _piecewise(rows_SI, weight_EOI, scale, block, ends_E, transposed=True)

    @staticmethod
    def backward(ctx: Any, gradient_SO: Tensor) -> tuple[Tensor, None, None, None, None]:
        weight_EOI, scale, ends_E = ctx.saved_tensors
        found = _piecewise(gradient_SO.contiguous(), weight_EOI, scale, ctx.block, ends_E, transposed=False)
        return found, None, None, None, None


def _piecewise(
    rows: Tensor, weight_EOI: Tensor, scale: Tensor, block: Block, ends_E: Tensor, *, transposed: bool
) -> Tensor:
    count, outputs, inputs = weight_EOI.shape
    size = max(1, UNPACKED_BYTES // (outputs * inputs * rows.element_size()))
    ends = ends_E.tolist() if size < count else [len(rows)] * count
    found = rows.new_empty(len(rows), outputs if transposed else inputs)
    start = 0
    for first in range(0, count, size):
        some = slice(first, min(first + size, count))
        end = ends[some.stop - 1]
        if start == end:
            continue
        pairs = zip(weight_EOI[some], scale[some], strict=True)
        matrices = torch.stack([_joined(one, its, block, rows.dtype) for one, its in pairs])
        matrices = matrices.transpose(1, 2) if transposed else matrices
        found[start:end] = grouped(rows[start:end], matrices, ends_E[some] - start)
        start = end
    return found


def _joined(weight_OI: Tensor, scale: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """One expert's matrix; where it is a gate and an up projection joined, the blocks of each begin anew."""
    high, _ = block or weight_OI.shape
    if len(scale) == -(-len(weight_OI) // high):
        return unpack(weight_OI, scale, block, dtype)
    halves = zip(weight_OI.chunk(2), scale.chunk(2), strict=True)
    return torch.cat([unpack(one, its, block, dtype) for one, its in halves])


def grouped_product(experts: Any, matrix: str, rows_SI: Tensor, ends_E: Tensor) -> Tensor:
    """Rows through the experts of such a base, each by its own matrix of this name."""
    weight_EOI, scale = getattr(experts, matrix), getattr(experts, f"{matrix}_scale_inv")
    out = _Grouped.apply(rows_SI, weight_EOI, scale, experts.block_size, ends_E)  # type: ignore[no-untyped-call]
    return cast(Tensor, out)
