"""The losses of TRL's own trainers for batches that are given, on an ordinary model and without the trainers around."""

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.nn.utils.rnn import pad_sequence


class Scored(torch.nn.Module):
    """A model that is called as TRL calls one whose head it has patched."""

    def __init__(self, model, temperature=1.0):
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, input_ids, attention_mask, labels, **_):
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions)
        wanted = labels[:, 1:]
        scores = (found.logits.float()[:, :-1] / self.temperature).log_softmax(-1)
        logprobs = scores.gather(2, wanted.clamp(min=0)[..., None]).squeeze(2) * (wanted != -100)
        nothing = torch.zeros_like(logprobs)
        return SimpleNamespace(log_probs=logprobs, entropy=nothing, mean_logits=nothing)


def alone(trainer, **settings):
    """A trainer of TRL that has been given nothing but these settings, in one process."""
    made = trainer.__new__(trainer)
    made.accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        is_main_process=False,  # nothing is reported
        autocast=nullcontext,
        gather=lambda value: value,
        gather_for_metrics=lambda value: value,
        reduce=lambda value, reduction: value,
    )
    made.model, made._metrics = SimpleNamespace(training=True), {"train": defaultdict(list)}
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def padded(rows, side="right"):
    """Rows as one tensor, and where it is not padding."""
    rows = [torch.as_tensor(row) for row in rows]
    return tuple(
        pad_sequence(each, batch_first=True, padding_side=side) for each in (rows, [torch.ones_like(r) for r in rows])
    )
