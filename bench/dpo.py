"""`python -m bench.dpo --against trl`: a preference step beside TRL's, same model, rows and precision, in turn.

A step of ours holds the reference of its rows too, although a run measures it only once per row. Loss and gradients are
compared in float32 first: the two sides compute the same thing.
"""

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from bench import versus
from engine.batches import MicroBatch, Plan
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.losses import per_answer, preference
from engine.spec import DPO, RunSpec
from engine.trainer import Trainer

PAIRS, ANSWER_WORDS = 4, 40
PROMPT_WORDS = {"short": 15, "long": 350}
BETA, RATE = 0.1, 1e-4


def write_pairs(path: Path, words: int, rows: int) -> None:
    """Pairs whose prompts have about so many words."""
    text = itertools.cycle(" ".join(versus.sentences()).split())
    counts = {"prompt": words, "chosen": ANSWER_WORDS, "rejected": ANSWER_WORDS}
    made = [{name: " ".join(itertools.islice(text, count)) for name, count in counts.items()} for _ in range(rows)]
    path.write_text("\n".join(json.dumps(row) for row in made), encoding="utf-8")


def spec_of(model: str, rows: Path, dtype: str) -> RunSpec:
    """Four pairs a step, LoRA on every linear layer."""
    return RunSpec.model_validate(
        {
            "model": model,
            "data": {"dataset": str(rows), "eval_fraction": 0.0},
            "method": {"type": "dpo", "beta": BETA},
            "training": {"per_device_train_batch_size": PAIRS, "dtype": dtype},
            "saving": {"sample_prompts": 0},
        }
    )


class Ours:
    """The engine's trainer and its batches."""

    def __init__(self, spec: RunSpec) -> None:
        torch.manual_seed(0)
        tokenizer = load_tokenizer(spec)
        stops = stop_ids(spec, tokenizer)
        prepared = prepare(spec, tokenizer, stops, lambda event: None)
        self.plan = Plan(prepared.train, max_length=prepared.max_length, packing=False, batch_size=PAIRS)
        self.trainer = Trainer(build(spec), spec.optimizer, stops)
        self.steps = itertools.count(1)

    def batch(self, number: int) -> MicroBatch:
        """A step's pairs with their reference."""
        (batch,) = self.plan.step(number)
        with torch.no_grad(), self.trainer.reference_model():
            reference, _ = per_answer(self.trainer.logprobs(batch), batch)
        return replace(batch, reference_DA=reference.cpu().numpy())

    def step(self) -> None:
        """Reference, loss, gradients, update."""
        loss = partial(preference, settings=DPO(beta=BETA), pairs=PAIRS)
        self.trainer.forward_backward(self.batch(next(self.steps)), loss)
        self.trainer.optim_step(RATE)


class Theirs:
    """TRL's trainer, its own collator and batches."""

    def __init__(self, spec: RunSpec, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
        base = AutoModelForCausalLM.from_pretrained(spec.model, dtype=dtype)
        rows = [json.loads(line) for line in Path(spec.data.dataset).read_text(encoding="utf-8").splitlines()]
        asked = [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                **{side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")},
            }
            for row in rows
        ]
        config = DPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=PAIRS,
            beta=BETA,
            learning_rate=RATE,
            max_length=1024,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            disable_tqdm=True,
        )
        self.trainer = DPOTrainer(
            model=get_peft_model(base, lora),
            args=config,
            train_dataset=Dataset.from_list(asked),
            processing_class=AutoTokenizer.from_pretrained(spec.model),
        )
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = 1  # TRL's own loop would set it
        self.batches: Iterator[Any] = itertools.chain.from_iterable(
            itertools.repeat(self.trainer.get_train_dataloader())
        )

    def step(self) -> None:
        """Reference, loss, gradients, update."""
        trainer, model = self.trainer, self.trainer.model
        trainer.training_step(model, next(self.batches))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def difference(ours: Ours, theirs: Theirs) -> dict[str, float]:
    """How far loss and gradients are apart on the same pairs, as shares of TRL's loss and of its largest gradient.

    Both adapters are the same and far from nothing, so that log-probabilities are large and rounding shows.
    """
    mine = ours.trainer.built.parameters()
    names = {name.replace("base_model.model.", ""): value for name, value in theirs.trainer.model.named_parameters()}
    for name, value in mine.items():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
        names[name.replace("base_model.model.", "")].data.copy_(value.data)
    batch = ours.batch(1)
    ours.trainer.forward_backward(batch, partial(preference, settings=DPO(beta=BETA), pairs=PAIRS))
    gradients = {name: value.grad.clone() for name, value in mine.items() if value.grad is not None}
    loss = ours.trainer.optim_step(0.0).loss
    rows = theirs.trainer.data_collator([theirs.trainer.train_dataset[row - 1] for row in batch.rows])
    rows["completion_mask"] = rows["completion_mask"] * until_stop(rows, theirs.trainer.processing_class.eos_token_id)
    theirs.trainer.model.train()
    expected = theirs.trainer.compute_loss(theirs.trainer.model, rows)
    expected.backward()
    pairs = [(gradient, names[name.replace("base_model.model.", "")].grad) for name, gradient in gradients.items()]
    apart = max(float((mine - other).abs().max()) for mine, other in pairs)
    largest = max(float(other.abs().max()) for _, other in pairs)
    theirs.trainer.model.zero_grad()
    return {"loss": abs(loss - expected.item()) / expected.item(), "gradient": apart / largest}


def until_stop(rows: Mapping[str, Tensor], stop: int) -> Tensor:
    """1 up to the last stop token of each row: TRL also learns the line break that the chat template has after it."""
    stops_BT = (rows["input_ids"] == stop) * rows["attention_mask"]  # padding may be the same token
    return (stops_BT.flip(1).cumsum(1).flip(1) > 0).long()


def match(model: str, rows: Path, words: int) -> versus.Match:
    """Both sides on pairs with prompts of so many words."""
    write_pairs(rows, words, 64)
    spec, exact = spec_of(model, rows, "bfloat16"), spec_of(model, rows, "float32")
    return versus.Match(
        lambda: Ours(spec).step,
        lambda: Theirs(spec, torch.bfloat16).step,
        lambda: difference(Ours(exact), Theirs(exact, torch.float32)),
    )


if __name__ == "__main__":
    versus.main("bench.dpo", __doc__, PROMPT_WORDS, match)
