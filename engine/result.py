"""What a run leaves behind: answers before and after training, its weights, and in words which step they are from."""

from pathlib import Path

from engine.adapter import save_result, write_probe
from engine.checkpoint import size_of
from engine.events import Phase, Sample, Saved
from engine.run import Run

MOST_NEW_TOKENS = 96


def sample(run: Run) -> None:
    """Answer the held-out prompts with the base model and with the tuned one."""
    prompts = run.prepared.prompts
    if not prompts:
        return
    run.say(Phase(phase="sampling", total=len(prompts)))
    ids = [prompt.ids.tolist() for prompt in prompts]
    tuned = run.trainer.sample(ids, MOST_NEW_TOKENS)
    with run.trainer.base_model():
        base = run.trainer.sample(ids, MOST_NEW_TOKENS)
    for prompt, before, after in zip(prompts, base, tuned, strict=True):
        run.say(
            Sample(
                step=run.trainer.step,
                prompt=prompt.messages,
                expected=prompt.expected,
                base_answer=run.tokenizer.decode(before, skip_special_tokens=True).strip(),
                answer=run.tokenizer.decode(after, skip_special_tokens=True).strip(),
            )
        )


def save(run: Run, probe: Path) -> None:
    """Write the adapter or model, and what the clean process will compare it with."""
    run.say(Phase(phase="saving"))
    built, samples, folder = run.trainer.built, run.prepared.train, run.folder.result(run.spec)
    run.history.offered = run.trainer.step
    save_result(built, run.tokenizer, run.spec, run.prepared, run.history, folder)
    first = samples.ids[: int(samples.offsets[1])].tolist()
    write_probe(built, first, probe)
    run.say(
        Saved(
            step=run.trainer.step,
            what="model" if built.adapter is None else "adapter",
            path=folder.name,
            bytes=size_of(folder) if run.mesh.main else 0,
        )
    )


def summary(run: Run, last_step: int) -> str:
    """Whether the run ended early, and which step's weights it offers."""
    said, what = [], "model" if run.trainer.built.adapter is None else "adapter"
    if last_step < run.total:
        patience = run.spec.saving.early_stopping_patience
        said.append(
            f"Stopped early at step {last_step} of {run.total}: {patience} evaluations in a row were not better."
        )
    if run.best is not None and run.best.step == run.trainer.step:
        where = f"the eval loss was lowest: {run.best.loss:.4g}"
        if run.spec.method.type == "grpo":  # its loss is minus the reward
            where = f"the held-out rows were rewarded most: {-(run.best.loss or 0.0):.4g}"
        said.append(f"The {what} is that of step {run.trainer.step}, where {where}.")
    else:
        said.append(f"The {what} is that of the last step, {run.trainer.step}.")
    return " ".join(said)
