"""TRL on the rows of `bench.sft`, in a process of its own: `python -m bench.trl_side JOB.json` prints JSON lines."""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from bench.peak import peak_bytes
from engine.devices import choose_device, set_threads
from engine.spec import Training


class _Say(TrainerCallback):
    """Prints a line after every optimizer step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One step is done."""
        del args, control
        tokens = int(state.num_input_tokens_seen)
        line = {"step": state.global_step, "time": time.time(), "tokens": tokens, "peak": peak_bytes()}
        print(json.dumps(line), flush=True)  # noqa: T201


def main(path: Path) -> None:
    """Train as the job says. Keys: model, rows, max_length, steps, dtype, lora, config (further SFTConfig fields)."""
    warnings.simplefilter("ignore")
    set_threads()
    job = json.loads(path.read_text(encoding="utf-8"))
    rows = [json.loads(line)["messages"] for line in Path(job["rows"]).read_text(encoding="utf-8").splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])),
        args=SFTConfig(
            output_dir=str(path.parent / "out"),
            max_length=job["max_length"],
            max_steps=job["steps"],
            per_device_train_batch_size=1,
            packing=True,
            learning_rate=job["learning_rate"],
            include_num_input_tokens_seen="all",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=choose_device(Training()).type == "cpu",
            seed=42,
            **job["config"],
        ),
        train_dataset=Dataset.from_list([{"prompt": row[:-1], "completion": row[-1:]} for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **job["lora"]),
        callbacks=[_Say()],
    )
    print(json.dumps({"mean_loss": trainer.train().training_loss}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
