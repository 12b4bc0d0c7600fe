"""Optimizers by transformers' names, and one of our own: AdamW all in bfloat16, rounded stochastically."""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.extras import has_bitsandbytes
from engine.failure import Failure
from engine.spec import Optimizer

BLOCK = 1 << 22  # elements that are computed in float32 at a time
EIGHT_BIT_DEVICES = {"cpu", "cuda", "xpu"}  # that bitsandbytes has kernels for


def make(parameters: Mapping[str, nn.Parameter], settings: Optimizer, device: torch.device) -> torch.optim.Optimizer:
    """The optimizer that the settings name. For `adamw_bf16` the parameters become bfloat16 themselves.

    Raises Failure when it is not installed or does not serve the device.
    """
    common: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.adam_beta1, settings.adam_beta2),
        "eps": settings.adam_epsilon,
        "weight_decay": settings.weight_decay,
    }
    values = list(parameters.values())
    if settings.optim == "adamw_8bit":
        check_eight_bit(device)
        eight_bit = importlib.import_module("bitsandbytes.optim")  # an extra: only who asks for it needs it
        made: torch.optim.Optimizer = eight_bit.AdamW8bit(values, **common)
        return made
    if settings.optim == "adamw_bf16":
        for value in values:
            value.data = value.data.to(torch.bfloat16)
        return StochasticAdamW(values, **common)
    return torch.optim.AdamW(values, **common, fused=device.type in {"cpu", "cuda", "xpu", "mps"})


def check_eight_bit(device: torch.device) -> None:
    """Raise Failure unless 8-bit states can be kept here."""
    advice = ["Optimizer adamw_bf16: states of half the size, on every device.", "Or adamw_torch_fused."]
    if not has_bitsandbytes():
        message = "The optimizer adamw_8bit needs the package bitsandbytes, which is not installed."
        raise Failure("optimizer_not_installed", message, ["pip install bitsandbytes", *advice])
    if device.type not in EIGHT_BIT_DEVICES:
        raise Failure("optimizer_not_here", f"The optimizer adamw_8bit does not run on {device.type.upper()}.", advice)


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW with parameters and both moments in bfloat16: 6 bytes for each trained parameter instead of 12.

    Every update is computed in float32 and rounded up or down with the probability of its distance, so that updates
    smaller than a bfloat16 step add up on average (Zamirai et al. 2020, arXiv:2010.06192). The random bits are a
    function of step and place: nothing of them has to be saved, and a resumed run draws the same.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; there is no closure to evaluate."""
        for group in self.param_groups:
            for index, value in enumerate(group["params"]):
                if value.grad is not None:
                    self._update(group, index, value)

    def _update(self, group: dict[str, Any], index: int, value: nn.Parameter) -> None:
        state = self.state[value]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(value), torch.zeros_like(value)
        state["step"] += 1
        count, (beta1, beta2) = float(state["step"]), group["betas"]
        size = group["lr"] / (1 - beta1**count)
        spread = math.sqrt(1 - beta2**count)
        random = torch.Generator(value.device).manual_seed(int(count) * 1_000_003 + index)
        tensors: tuple[Any, ...] = (value, value.grad, state["exp_avg"], state["exp_avg_sq"])
        flat = [tensor.view(-1).split(BLOCK) for tensor in tensors]
        for weight, gradient, first, second in zip(*flat, strict=True):
            slope = gradient.float()
            mean = first.float().lerp_(slope, 1 - beta1)
            square = second.float().mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
            moved = weight.float().mul_(1 - group["lr"] * group["weight_decay"])
            moved.addcdiv_(mean, square.sqrt().div_(spread).add_(group["eps"]), value=-size)
            for target, exact in ((first, mean), (second, square), (weight, moved)):
                round_into(target, exact, random)


def round_into(target: Tensor, exact: Tensor, random: torch.Generator) -> None:
    """Write float32 values into a bfloat16 tensor of the same shape, each rounded to one of its two neighbours.

    A bfloat16 is the upper half of a float32: adding random bits to the lower half carries over with the probability
    of the part that is cut off, so the mean of many roundings is the value itself.
    """
    noise = torch.randint(0, 1 << 16, exact.shape, dtype=torch.int32, device=exact.device, generator=random)
    target.copy_((exact.view(torch.int32) + noise).bitwise_and_(-(1 << 16)).view(torch.float32))
