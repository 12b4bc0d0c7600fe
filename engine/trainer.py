"""The six verbs: forward_backward, optim_step, logprobs, sample, save, load; and base_model. Methods need no more."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from engine import attention, optimizers, sampling, state
from engine.batches import NOTHING, Bools, Drawn, MicroBatch, texts
from engine.build import Built
from engine.generate import greedy
from engine.head import Kept
from engine.layout import shard
from engine.layout.context import Stretch
from engine.layout.exchange import gathered
from engine.layout.gradients import Gradients
from engine.rollouts import Group
from engine.sampling import Draw, Sampled
from engine.sampling_server import Server
from engine.spec import Optimizer

T = TypeVar("T")
R = TypeVar("R")
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

    def __init__(
        self, built: Built, settings: Optimizer, stop_ids: Sequence[int], server: Server | None = None
    ) -> None:
        """`server`: samples in the engine's place."""
        self.built = built
        self.server = server
        self.step = 0
        self._stop_ids = list(stop_ids)
        self._max_norm = settings.max_grad_norm
        self._parameters = built.parameters()
        self.optimizer = optimizers.make(self._parameters, settings, built.device)
        self._gradients = Gradients(self._parameters, built.placements, built.mesh)
        self._reset()

    def share(self, batches: Iterable[MicroBatch]) -> list[MicroBatch]:
        """What of these micro-batches is computed here; all of them on one device.

        As many on every device, and as many texts where they run one by one, so that all stay in step.
        """
        mesh, all_of_them = self.built.mesh, list(batches)
        mine = mesh.share(all_of_them, NOTHING)
        if not self.built.alone or mesh.world.size == 1:
            return mine
        rounds = [all_of_them[at : at + mesh.batches.size] for at in range(0, len(all_of_them), mesh.batches.size)]
        most = [max(batch.texts for batch in others) for others in rounds]
        return [replace(batch, idle=texts - batch.texts) for batch, texts in zip(mine, most, strict=True)]

    def spread(self, items: Sequence[T], most: int, work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """What `work` makes of the items, at most so many of them at a time; everywhere, each device doing its share.

        As often on every device, so that all stay in step.
        """
        if not items:
            return []
        mesh = self.built.mesh
        size = max(1, min(most, -(-len(items) // mesh.batches.size)))
        portions = [items[at : at + size] for at in range(0, len(items), size)]
        done = [work(portion) for portion in mesh.share(portions, portions[0])]
        return [one for portion in mesh.together(done, len(portions)) for one in portion]

    def total(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums, by name, of what was measured on everybody's share."""
        return self.built.mesh.total(values)

    def forward_backward(self, batch: MicroBatch, loss: Loss) -> None:
        """Add a micro-batch's loss and gradients to the step in progress."""
        self.built.model.train()
        logprobs_N = self._token_logprobs(batch)
        found = loss(logprobs_N, batch) if batch.trained_tokens else logprobs_N.sum()
        value, measured = found if isinstance(found, tuple) else (found, {})
        value.backward()
        self._losses.append(value.detach())
        for name, share in measured.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + share.detach()
        self._tokens += batch.tokens if batch.rows else 0
        self._trained_tokens += batch.trained_tokens

    def optim_step(self, learning_rate: float) -> Stepped:
        """Clip, update, start the next step. Gradients that are not finite are dropped and the update skipped."""
        self._gradients.synchronise()
        norm = self._gradients.norm()
        grad_norm = float(norm)
        skipped = not math.isfinite(grad_norm)
        if not skipped:
            if self._max_norm and grad_norm > self._max_norm:
                torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.step += 1
        measured = {name: float(value) for name, value in self._metrics.items()}
        counts = {"tokens": self._tokens, "trained_tokens": self._trained_tokens}
        found = self.total({"loss": sum(float(loss) for loss in self._losses), **counts, **measured})
        done = Stepped(
            step=self.step,
            loss=found.pop("loss"),
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            tokens=int(found.pop("tokens")),
            trained_tokens=int(found.pop("trained_tokens")),
            skipped=skipped,
            metrics=found,
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
        if self.server is not None:
            self.server.update(self.built, self.step)
            return self.server.sample(prompts, seeds, draw, self._stop_ids, max_new_tokens)
        return sampling.sample(self.built, prompts, seeds, draw, self._stop_ids, max_new_tokens)

    def save(self) -> state.Snapshot:
        """A copy of everything that resuming needs, on any layout, to be written while training goes on.

        On several devices all of them call this, and the main one gets it.
        """
        built = self.built
        return state.take(
            self.step, self._parameters, built.placements, self.optimizer, built.device, keep=built.mesh.main
        )

    def load(self, folder: Path) -> None:
        """Go on from what a snapshot wrote, bit for bit. Raises Failure when it is of another adapter."""
        shard.settle(self.built.model)
        device, placements = self.built.device, self.built.placements
        self.step = state.load(folder, self._parameters, placements, self.optimizer, device)
        self._reset()

    def base_model(self) -> AbstractContextManager[None]:
        """The base model's weights, inside the block."""
        return self.built.base_model()

    def reference_model(self) -> AbstractContextManager[None]:
        """The weights that the run started from, inside the block."""
        return self.built.reference_model()

    def _reset(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._losses: list[Tensor] = []
        self._metrics: dict[str, Tensor | float] = {}
        self._tokens = 0
        self._trained_tokens = 0

    def _token_logprobs(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities (N,) of the trained tokens, computed within the model's own forward pass."""
        return shard.inside(self.built.model, lambda: self._forward(batch))

    def _forward(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities (N,) of the trained tokens: hidden states of their predecessors through the tiled head."""
        team, device = self.built.mesh.context, self.built.device
        stretch = Stretch.of(batch.filled([1] * batch.idle), team)
        hidden_tD = self._hidden(stretch)
        sources_n, targets_n = (torch.from_numpy(each).to(device) for each in (stretch.sources_n, stretch.targets_n))
        under = {} if batch.drawn is None else _under(batch.drawn, stretch.mine_N)
        logprobs_n = self.built.head(hidden_tD.index_select(0, sources_n), targets_N=targets_n, **under)
        if team.size == 1:
            return cast(Tensor, logprobs_n)
        places_N = torch.from_numpy(stretch.places_N).to(device)
        return gathered(logprobs_n, 0, stretch.counts, team).index_select(0, places_N)

    def _hidden(self, stretch: Stretch) -> Tensor:
        """Last hidden states (t, D) of a stretch; documents run packed, or one at a time where the model needs it."""
        device, batch, trunk = self.built.device, stretch.batch, self.built.trunk
        ids_1t = torch.from_numpy(batch.ids_T[stretch.here]).to(device)[None]
        positions_1t = torch.from_numpy(batch.position_ids_T[stretch.here]).to(device)[None]
        if not self.built.alone:
            documents = attention.Documents(tuple(batch.lengths), tuple(batch.answers))
            packed = trunk(input_ids=ids_1t, position_ids=positions_1t, documents=documents, use_cache=False)
            return cast(Tensor, packed.last_hidden_state[0])
        parts = [
            trunk(input_ids=ids_1t[:, at], position_ids=positions_1t[:, at], use_cache=False).last_hidden_state[
                0, -new:
            ]
            for at, new in texts(batch.lengths, batch.answers)
        ]
        return torch.cat(parts)


def _under(drawn: Drawn, mine_N: Bools) -> dict[str, Any]:
    """What the head is told so that the targets of this process are scored as they were drawn."""
    if drawn.kept is None:
        return {"temperature": drawn.temperature}
    sizes_N = np.diff(drawn.kept_offsets)
    offsets = np.concatenate([[0], np.cumsum(sizes_N[mine_N])])
    kept = Kept(torch.from_numpy(drawn.kept[np.repeat(mine_N, sizes_N)]), torch.from_numpy(offsets))
    return {"temperature": drawn.temperature, "kept": kept}
