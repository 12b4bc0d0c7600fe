"""`python -m bench.grpo --against trl`: a step of reinforcement learning beside TRL's: same model, prompts, group size.

Both sample, reward, and learn from the same number of answers of the same length (the stop token is forbidden on both
sides, so that neither has less to do).
"""

import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from bench import versus
from engine.batches import Plan
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.devices import choose_dtype
from engine.methods import METHODS
from engine.rewards import grader
from engine.spec import RunSpec
from engine.trainer import Trainer

PROMPTS, ANSWERS, TOKENS = 2, 8, 24  # four long prompts are more than TRL can do in 24 GiB
PROMPT_WORDS = {"short": 15, "long": 200}
RATE = 1e-5


def write_prompts(path: Path, words: int, rows: int) -> None:
    """Prompts of about so many words."""
    text = itertools.cycle(" ".join(versus.sentences()).split())
    made = [{"prompt": " ".join(itertools.islice(text, words)), "answer": "e"} for _ in range(rows)]
    path.write_text("\n".join(json.dumps(row) for row in made), encoding="utf-8")


def spec_of(model: str, rows: Path) -> RunSpec:
    """Two prompts a step with eight answers each."""
    return RunSpec.model_validate(
        {
            "model": model,
            "data": {"dataset": str(rows), "eval_fraction": 0.0, "max_length": 2048},
            "method": {
                "type": "grpo",
                "rewards": {"worth": 1.0},
                "num_generations": ANSWERS,
                "max_completion_length": TOKENS,
                "loss_type": "grpo",
            },
            "optimizer": {"learning_rate": RATE},
            "training": {"per_device_train_batch_size": PROMPTS, "max_steps": 10_000},
            "saving": {"sample_prompts": 0},
        }
    )


def worth(text: str) -> float:
    """A reward that always tells answers of a group apart, at no cost: the share of one letter."""
    return text.count("e") / max(1, len(text))


class Ours:
    """The method itself, over the engine's trainer."""

    def __init__(self, spec: RunSpec) -> None:
        torch.manual_seed(0)
        tokenizer = load_tokenizer(spec)
        samples = prepare(spec, tokenizer, stop_ids(spec, tokenizer), lambda event: None).train
        plan = Plan(samples, max_length=2048, packing=False, batch_size=PROMPTS)
        never = [len(tokenizer) - 1]  # a token that no answer uses
        grader.PLAIN["worth"] = lambda case, _: worth(case.answer)
        trainer = Trainer(build(spec), spec.optimizer, never)
        self.steps = METHODS["grpo"](trainer, spec, plan)

    def step(self) -> None:
        """Sample, reward, learn."""
        next(self.steps)


class Theirs:
    """TRL's trainer with its own sampling."""

    def __init__(self, spec: RunSpec) -> None:
        torch.manual_seed(0)
        lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
        base = AutoModelForCausalLM.from_pretrained(spec.model, dtype=choose_dtype(spec, torch.device("cpu")))
        rows = [json.loads(line) for line in Path(spec.data.dataset).read_text(encoding="utf-8").splitlines()]
        asked = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=PROMPTS * ANSWERS,
            num_generations=ANSWERS,
            max_completion_length=TOKENS,
            generation_kwargs={"min_new_tokens": TOKENS},
            loss_type="grpo",
            learning_rate=RATE,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            disable_tqdm=True,
        )
        self.trainer = GRPOTrainer(
            model=get_peft_model(base, lora),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(asked),
            processing_class=AutoTokenizer.from_pretrained(spec.model, padding_side="left"),
        )
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = 1  # TRL's own loop would set it
        self.batches: Iterator[Any] = itertools.chain.from_iterable(
            itertools.repeat(self.trainer.get_train_dataloader())
        )

    def step(self) -> None:
        """Sample, reward, learn."""
        trainer, model = self.trainer, self.trainer.model
        trainer.training_step(model, next(self.batches), None)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def reward(completions: list[Any], **_: Any) -> list[float]:
    """The same reward, as TRL calls one."""
    return [worth(completion[0]["content"]) for completion in completions]


def match(model: str, rows: Path, words: int) -> versus.Match:
    """Both sides on prompts of so many words."""
    write_prompts(rows, words, 64)
    spec = spec_of(model, rows)
    return versus.Match(lambda: Ours(spec).step, lambda: Theirs(spec).step)


if __name__ == "__main__":
    versus.main("bench.grpo", __doc__, PROMPT_WORDS, match)
