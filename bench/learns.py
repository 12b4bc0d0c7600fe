"""`python -m bench.learns add|gym|prefer --seed N`: proof, in minutes and on a CPU, that the methods learn.

add, gym: the starter model first imitates the form of short answers (it scores nothing before), then GRPO makes them
right; the mean reward on prompts that are in neither training set is measured along the way. gym takes its prompts and
its judge from reasoning-gym. prefer: DPO learns which of two equally long answers is meant, and is measured on
questions worded in ways that it never saw. `--control` trains with a learning rate of practically nothing.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import reasoning_gym
import torch

from bench import versus
from engine.batches import Plan, Samples, in_order
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.losses import per_answer
from engine.methods import EVALUATIONS, METHODS
from engine.spec import RunSpec
from engine.trainer import Trainer

HELD_OUT, MEASURED_EVERY = 48, 10
NOTHING = 1e-12  # a learning rate
FORM_ROWS = 64
FORM_STEPS = 12
STEPS = {"add": 60, "gym": 60, "prefer": 40}
Row = dict[str, Any]


def additions(seed: int) -> Iterator[Row]:
    """Sums of a number below 20 and a digit, each pair once."""
    pairs = [(a, b) for a in range(20) for b in range(10)]
    random.Random(seed).shuffle(pairs)
    for a, b in pairs:
        yield {"prompt": f"Reply with the number only: {a} + {b} =", "answer": str(a + b)}


def exercises(seed: int) -> Iterator[Row]:
    """reasoning-gym's chains of sums and differences, the shortest; each question once."""
    made = reasoning_gym.create_dataset("chain_sum", size=4000, seed=seed, min_terms=2, max_terms=2, max_digits=1)
    seen: set[str] = set()
    for entry in made:
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield {"prompt": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]}


ADVERBS = (("surely", "maybe"), ("certainly", "possibly"), ("clearly", "perhaps"), ("definitely", "conceivably"))
SEEN = {
    "topics": ("tea", "rain", "bread", "chess", "trains", "owls", "gardens", "maps"),
    "asked": ("Tell me about {}.", "What do you know of {}?", "Say something on {}."),
    "answered": ("{} will {} please you.", "{} are {} worth a look.", "{} {} deserve some time."),
}
UNSEEN = {
    "topics": ("soup", "bridges", "clouds", "radios", "wool", "paper"),
    "asked": ("{}: your thoughts?", "Could you comment on {} for me?"),
    "answered": ("I would {1} choose {0} again.", "There is {1} more to {0} than one sees.", "Nobody {1} regrets {0}."),
}


def preferences(seed: int, words: dict[str, tuple[str, ...]]) -> list[Row]:
    """Confident answers are preferred to doubtful ones of as many words, whatever they are about."""
    rows = [
        {
            "prompt": asked.format(topic),
            "chosen": answered.format(topic, sure).capitalize(),
            "rejected": answered.format(topic, unsure).capitalize(),
        }
        for topic in words["topics"]
        for asked in words["asked"]
        for answered in words["answered"]
        for sure, unsure in ADVERBS
    ]
    random.Random(seed).shuffle(rows)
    return rows


def written(folder: Path, name: str, rows: list[Row]) -> str:
    """A dataset file."""
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


class Session:
    """A trainer that goes from one method to the next with the same weights."""

    def __init__(self, spec: RunSpec) -> None:
        torch.manual_seed(spec.training.seed)
        self.tokenizer = load_tokenizer(spec)
        self.stops = stop_ids(spec, self.tokenizer)
        self.built = build(spec)

    def samples(self, spec: RunSpec) -> Samples:
        """The rows of a spec, ready."""
        return prepare(spec, self.tokenizer, self.stops, lambda event: None).train

    def learn(self, spec: RunSpec, held: Samples | None = None) -> list[dict[str, float]]:
        """Train from the weights as they are; what the held-out rows said, if any, before and along the way."""
        trainer = Trainer(self.built, spec.optimizer, self.stops)
        train = self.samples(spec)
        if spec.method.type == "dpo":
            train, held = referred(trainer, train), held and referred(trainer, held)
        training = spec.training
        plan = Plan(
            train,
            max_length=512,
            packing=spec.packing,
            batch_size=training.per_device_train_batch_size,
            seed=training.seed,
        )
        measure = partial(EVALUATIONS[spec.method.type], trainer, spec)
        told = [{"step": 0.0} | measure(held).metrics] if held else []
        for step in METHODS[spec.method.type](trainer, spec, plan):
            if held and step.step % MEASURED_EVERY == 0:
                told.append({"step": step.step} | measure(held).metrics)
        return told


def referred(trainer: Trainer, samples: Samples) -> Samples:
    """Pairs with what the weights at the start think of them."""
    with torch.no_grad(), trainer.reference_model():
        sums = [per_answer(trainer.logprobs(batch), batch)[0] for batch in in_order(samples, 512)]
    return replace(samples, reference=torch.cat(sums).cpu().numpy())


def spec_of(model: str, dataset: str, method: Row, *, steps: int, rate: float, batch: int, seed: int) -> RunSpec:
    """A run of some steps."""
    return RunSpec.model_validate(
        {
            "model": model,
            "data": {"dataset": dataset, "eval_fraction": 0.0, "max_length": 512, "packing": False},
            "method": method,
            "optimizer": {"learning_rate": rate, "lr_scheduler_type": "linear", "warmup_steps": 2},
            "training": {"max_steps": steps, "per_device_train_batch_size": batch, "seed": seed},
            "saving": {"sample_prompts": 0},
        }
    )


def rewarded(task: str, model: str, folder: Path, seed: int, rate: float) -> list[dict[str, float]]:
    """SFT for the form, then GRPO for the answer."""
    rows = list({"add": additions, "gym": exercises}[task](seed))
    form, rows = [{"prompt": row["prompt"], "completion": row["answer"]} for row in rows[:FORM_ROWS]], rows[FORM_ROWS:]
    held, train = rows[:HELD_OUT], rows[HELD_OUT : HELD_OUT + 480]
    reward = "reasoning_task" if task == "gym" else "exact_match"
    method: Row = {"type": "grpo", "rewards": {reward: 1.0}, "num_generations": 8, "max_completion_length": 8}
    first = spec_of(
        model,
        written(folder, "form", form),
        {"type": "sft"},
        steps=FORM_STEPS,
        rate=2e-4,
        batch=8,
        seed=seed,
    )
    second = spec_of(model, written(folder, "train", train), method, steps=STEPS[task], rate=rate, batch=4, seed=seed)
    session = Session(first)
    session.learn(first)
    unseen = session.samples(
        second.model_copy(update={"data": second.data.model_copy(update={"dataset": written(folder, "held", held)})})
    )
    return session.learn(second, unseen)


def preferred(model: str, folder: Path, seed: int, rate: float) -> list[dict[str, float]]:
    """DPO, measured on wordings that it never saw."""
    method: Row = {"type": "dpo", "beta": 0.1}
    train = written(folder, "train", preferences(seed, SEEN))
    spec = spec_of(model, train, method, steps=STEPS["prefer"], rate=rate, batch=4, seed=seed)
    session = Session(spec)
    held = spec.data.model_copy(update={"dataset": written(folder, "held", preferences(seed, UNSEEN))})
    return session.learn(spec, session.samples(spec.model_copy(update={"data": held})))


def main() -> None:
    """Parse, learn, print what the held-out rows said."""
    parser = argparse.ArgumentParser(prog="python -m bench.learns", description=__doc__)
    parser.add_argument("task", choices=[*STEPS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, help="learning rate; default: 2e-4, and 5e-5 for prefer")
    parser.add_argument("--control", action="store_true", help="learn nothing")
    parser.add_argument("--model", help="model folder; default: the starter model, converted first")
    parser.add_argument("--into", type=Path, help="a file that the result is added to, for bench.curves")
    asked = parser.parse_args()
    rate = NOTHING if asked.control else asked.rate or (5e-5 if asked.task == "prefer" else 2e-4)
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model or versus.starter_model(Path(scratch))
        if asked.task == "prefer":
            told, name = preferred(model, Path(scratch), asked.seed, rate), "rewards/accuracies"
        else:
            told, name = rewarded(asked.task, model, Path(scratch), asked.seed, rate), "reward"
    curve = {int(each["step"]): round(each[name], 3) for each in told}
    last = [each[name] for each in told[-2:]]
    gain = sum(last) / len(last) - told[0][name]
    found = {"task": asked.task, "seed": asked.seed, "control": asked.control, "rate": rate, "measured": name}
    found |= {"curve": curve, "last_two": round(sum(last) / len(last), 3), "gain": round(gain, 3)}
    if asked.into:
        with asked.into.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    versus.say(found, as_json=True)


if __name__ == "__main__":
    main()
