"""`python -m bench.parity_trl`: our SFT and TRL's give the same loss, step by step, on the same rows in float32.

Both get the same tokens in the same order, one row per step, the same adapter at the start, a constant learning rate.
Ours is computed by the trainer that runs use, TRL's by its SFTTrainer at its defaults but for precision and order.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from bench.rows import write_chats
from engine import lora
from engine.batches import Samples, gather
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.losses import imitation
from engine.spec import RunSpec
from engine.trainer import Trainer
from tests.engine.models import starter_folder

LEARNING_RATE = 1e-3


def make_spec(model: str, rows: Path, length: int) -> RunSpec:
    """Plain AdamW in float32 on the CPU."""
    return RunSpec.model_validate(
        {
            "model": model,
            "data": {"dataset": str(rows), "max_length": length, "eval_fraction": 0.0, "packing": False},
            "optimizer": {"learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant", "warmup_steps": 0},
            "training": {"dtype": "float32", "device": "cpu"},
        }
    )


def ours(spec: RunSpec, samples: Samples, steps: int) -> list[float]:
    """The loss of each step, one sample per step in file order."""
    trainer = Trainer(build(spec), spec.optimizer, [0])
    losses = []
    for index in range(steps):
        batch = gather(samples, [index])
        trainer.forward_backward(batch, partial(imitation, trained_tokens=batch.trained_tokens))
        losses.append(trainer.optim_step(LEARNING_RATE).loss)
    return losses


def theirs(spec: RunSpec, samples: Samples, steps: int, folder: Path) -> list[float]:
    """The losses that TRL logs on the same tokens and labels."""
    bounds = list(zip(samples.offsets[:-1].tolist(), samples.offsets[1:].tolist(), strict=True))[:steps]
    labels = np.where(samples.trained, samples.ids, -100)
    rows = {
        "input_ids": [samples.ids[a:b].tolist() for a, b in bounds],
        "labels": [labels[a:b].tolist() for a, b in bounds],
    }
    settings = spec.lora
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(folder),
            max_length=spec.data.max_length,
            max_steps=steps,
            per_device_train_batch_size=1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=spec.optimizer.max_grad_norm,
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            train_sampling_strategy="sequential",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(spec.model),
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=settings.r, lora_alpha=settings.lora_alpha, target_modules="all-linear"
        ),
    )
    lora.seed_adapter(trainer.model.get_base_model(), spec.training.seed)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.parity_trl", description=__doc__)
    parser.add_argument("--model", default="", help="a model folder; the starter model if empty")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
        rows = Path(folder) / "rows.jsonl"
        write_chats(rows, asked.length * (asked.steps + 2), asked.length)
        spec = make_spec(asked.model or str(starter_folder()), rows, asked.length)
        tokenizer = load_tokenizer(spec)
        samples = prepare(spec, tokenizer, stop_ids(spec, tokenizer), lambda _: None).train
        pairs = list(
            zip(
                ours(spec, samples, asked.steps),
                theirs(spec, samples, asked.steps, Path(folder) / "trl"),
                strict=True,
            )
        )
    largest = max(abs(one - other) for one, other in pairs)
    made = {"atelier": [one for one, _ in pairs], "trl": [other for _, other in pairs], "largest": largest}
    lines = [f"step {step}: {one:.6f} {other:.6f}" for step, (one, other) in enumerate(pairs, 1)]
    print(json.dumps(made) if asked.json else "\n".join([*lines, f"largest difference {largest:.1e}"]))  # noqa: T201


if __name__ == "__main__":
    main()
