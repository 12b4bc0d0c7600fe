"""The six verbs: forward_backward, optim_step, logprobs, sample, save, load; and base_model. Methods need no more."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from engine import attention, optimizers, sampling, state
from engine.batches import Drawn, MicroBatch, texts
from engine.build import Built
from engine.generate import greedy
from engine.head import Kept
from engine.rollouts import Group
from engine.sampling import Draw, Sampled
from engine.spec import Optimizer

Loss = Callable[[Tensor, MicroBatch], Tensor | tuple[Tensor, Mapping[str, Tensor]]]
"""(log-probabilities (N,) of the batch's trained tokens, the batch) -> this batch's share of the step's loss; and where
the method measures more, its share of the step's mean of each measurement, by name."""


@dataclass(frozen=True)
class Stepped:
    """What one optimizer step did; `skipped` when its gradients were not finite and nothing was changed.

    `metrics`: what the method measures besides the loss, by name (rewards, margins, entropy). `groups`: the answers
    that the step learned from, where the method samples them.
    """

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    trained_tokens: int
    skipped: bool
    metrics: dict[str, float] = field(default_factory=dict)
    groups: Sequence[Group] = ()


class Trainer:
    """One adapter in training. `step` counts the optimizer steps done, skipped ones included."""

    def __init__(self, built: Built, settings: Optimizer, stop_ids: Sequence[int]) -> None:
        self.built = built
        self.step = 0
        self._stop_ids = list(stop_ids)
        self._max_norm = settings.max_grad_norm
        self._parameters = built.parameters()
        self._optimizer = optimizers.make(self._parameters, settings, built.device)
        self._reset()

    def forward_backward(self, batch: MicroBatch, loss: Loss) -> None:
        """Add a micro-batch's loss and gradients to the step in progress."""
        self.built.model.train()
        found = loss(self._token_logprobs(batch), batch)
        value, measured = found if isinstance(found, tuple) else (found, {})
        value.backward()
        self._losses.append(value.detach())
        for name, share in measured.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + share.detach()
        self._tokens += batch.tokens
        self._trained_tokens += batch.trained_tokens

    def optim_step(self, learning_rate: float) -> Stepped:
        """Clip, update, start the next step. Gradients that are not finite are dropped and the update skipped."""
        gradients = [value.grad for value in self._parameters.values() if value.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
        grad_norm = float(norm)
        skipped = not math.isfinite(grad_norm)
        if not skipped:
            if self._max_norm and grad_norm > self._max_norm:
                torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_norm, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        self.step += 1
        done = Stepped(
            step=self.step,
            loss=float(sum(float(loss) for loss in self._losses)),
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            tokens=self._tokens,
            trained_tokens=self._trained_tokens,
            skipped=skipped,
            metrics={name: float(value) for name, value in self._metrics.items()},
        )
        self._reset()
        return done

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Float32 log-probabilities (N,) of the batch's trained tokens, in order, without gradients or dropout."""
        self.built.model.eval()
        return self._token_logprobs(batch)

    def sample(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        """Greedy answers (token ids without the stop token) to prompts given as token ids."""
        return greedy(self.built, prompts, self._stop_ids, max_new_tokens)

    def sample_groups(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], draw: Draw, max_new_tokens: int
    ) -> list[list[Sampled]]:
        """Answers drawn from the weights as they are, one per seed of a prompt's row in `seeds`."""
        return sampling.sample(self.built, prompts, seeds, draw, self._stop_ids, max_new_tokens)

    def save(self, folder: Path) -> None:
        """Write everything that resuming needs into an existing folder."""
        state.save(folder, self.step, self._parameters, self._optimizer, self.built.device)

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, bit for bit. Raises Failure when it is of another adapter."""
        self.step = state.load(folder, self._parameters, self._optimizer, self.built.device)
        self._reset()

    def base_model(self) -> AbstractContextManager[None]:
        """The base model's weights, inside the block."""
        return self.built.base_model()

    def reference_model(self) -> AbstractContextManager[None]:
        """The weights that the run started from, inside the block."""
        return self.base_model()

    def _reset(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._losses: list[Tensor] = []
        self._metrics: dict[str, Tensor | float] = {}
        self._tokens = 0
        self._trained_tokens = 0

    def _token_logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities (N,) of the trained tokens: hidden states of their predecessors through the tiled head."""
        device = self.built.device
        hidden_TD = self._hidden(batch)
        sources_N = torch.from_numpy(batch.sources_N).to(device)
        targets_N = torch.from_numpy(batch.ids_T[batch.trained_T]).to(device)
        under = _under(batch.drawn) if batch.drawn is not None else {}
        logprobs_N = self.built.head(hidden_TD.index_select(0, sources_N), targets_N=targets_N, **under)
        return cast(Tensor, logprobs_N)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """Last hidden states (T, D); documents run packed, or one at a time where the model needs it."""
        device = self.built.device
        ids_1T = torch.from_numpy(batch.ids_T).to(device)[None]
        positions_1T = torch.from_numpy(batch.position_ids_T).to(device)[None]
        trunk = self.built.trunk
        if not self.built.alone:
            documents = attention.Documents(tuple(batch.lengths), tuple(batch.answers))
            packed = trunk(input_ids=ids_1T, position_ids=positions_1T, documents=documents, use_cache=False)
            return cast(Tensor, packed.last_hidden_state[0])
        parts = [
            trunk(input_ids=ids_1T[:, at], position_ids=positions_1T[:, at], use_cache=False).last_hidden_state[
                0, -new:
            ]
            for at, new in texts(batch.lengths, batch.answers)
        ]
        return torch.cat(parts)


def _under(drawn: Drawn) -> dict[str, Any]:
    """What the head is told so that targets are scored as they were drawn."""
    if drawn.kept is None:
        return {"temperature": drawn.temperature}
    kept = Kept(torch.from_numpy(drawn.kept), torch.from_numpy(drawn.kept_offsets))
    return {"temperature": drawn.temperature, "kept": kept}
