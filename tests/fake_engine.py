"""A stand-in for `python -m engine` that speaks events.jsonl; the first word of the run's name says how it behaves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def say(run: Path, kind: str, **fields: object) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(json.dumps({"kind": kind, "time": time.time(), **fields}).encode() + b"\n")


def finish(run: Path, status: str, exit_code: int = 0, **fields: object) -> None:
    say(run, "finished", status=status, **fields)
    os._exit(exit_code)


def step(run: Path, number: int) -> None:
    numbers = {"epoch": number / 10, "loss": 3.0 - number / 100, "learning_rate": 1e-4, "grad_norm": 1.0}
    say(run, "step", step=number, tokens=10, trained_tokens=5, seconds=0.01, tokens_per_second=1000.0, **numbers)
    (run / "checkpoints" / f"step-{number}").mkdir(parents=True, exist_ok=True)


def start(run: Path, total: int) -> int:
    """The step to go on from."""
    done = max([int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")], default=0)
    rows = {"train_rows": 9, "eval_rows": 1, "trained_tokens": 5, "total_tokens": 10}
    size = {"trainable_parameters": 1, "total_parameters": 2}
    say(run, "started", total_steps=total, first_step=done, device="cpu", dtype="float32", **rows, **size)
    return done


def misbehave(run: Path, how: str) -> None:
    """End, or hang, in the way that the name asks for."""
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-S", "-c", deaf])
        (run / "child").write_text(str(child.pid))
        time.sleep(600)
    if how == "crash":
        sys.stderr.write("Traceback ...\nRuntimeError: the sky fell\n")
        sys.exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "half":
        with (run / "events.jsonl").open("ab") as file:
            file.write(b'this is no event\n{"kind": "st')
        sys.exit(1)
    if how == "refuse":
        finish(run, "failed", 1, code="no_rows", message="0 of 9 rows can be used.", advice=["Mend the rows."])
    if how == "full":
        finish(run, "paused", 0, code="disk_full", message="The disk is full.")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def meet(run: Path) -> list[int]:
    """Wait for the engines on the other hosts of the run, if there are any; their process ids, the first host first."""
    if "--host" not in sys.argv:
        return []
    hosts, place = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("--hosts", "--host"))
    key = (run / "meeting").read_text()
    marks = [run / f"{key}-{number}" for number in range(hosts)]
    (run / f"mine-{place}").write_text(str(os.getpid()))
    (run / f"mine-{place}").rename(marks[place])
    while not all(mark.exists() for mark in marks):
        time.sleep(0.02)
    return [int(mark.read_text()) for mark in marks if mark != marks[place]]


def take_part(run: Path, how: str, leader: int) -> None:
    """What an engine on another host than the first does: it ends when the first one does, well or not."""
    if how in ("elsewhere", "unnoticed"):
        sys.exit("RuntimeError: the sky fell elsewhere")
    while alive(leader):
        time.sleep(0.02)
    os._exit(0 if b'"finished"' in (run / "events.jsonl").read_bytes().splitlines()[-1] else 1)


def train(run: Path) -> None:
    spec = json.loads((run / "spec.json").read_text())
    how, _, argument = spec["name"].partition(" ")
    others = meet(run)
    if others and sys.argv[sys.argv.index("--host") + 1] != "0":
        take_part(run, how, others[0])
    (run / "started").write_text(str(os.getpid()))
    say(run, "phase", phase="loading_model", detail="fake")
    misbehave(run, how)
    if how == "loud":
        sys.stdout.write("x" * 99 + "\n" * 1 + ("y" * 99 + "\n") * 10_500)
    if how == "environment":
        (run / "environment.json").write_text(json.dumps(dict(os.environ)))
    total = int(argument) if argument.isdigit() else 1_000_000 if how in ("long", "elsewhere") else 5
    for number in range(start(run, total) + 1, total + 1):
        step(run, number)
        if (run / "stop").exists():
            why = "cancelled" if (run / "stop").read_text() == "cancel" else "paused"
            finish(run, why, step=number)
        if how in ("long", "elsewhere"):
            time.sleep(0.02)
        while how == "unnoticed":  # in an exchange that nobody answers
            time.sleep(0.02)
        if not all(alive(pid) for pid in others):
            sys.exit("RuntimeError: Connection closed by peer")
    say(run, "eval", step=total, loss=2.5, tokens=7)
    (run / "adapter").mkdir(exist_ok=True)
    (run / "adapter" / "adapter_config.json").write_text("{}")
    finish(run, "succeeded", step=total)


def describe(folder: Path) -> None:
    if (folder / "broken").exists():
        sys.exit("ValueError: broken on purpose")
    config = json.loads((folder / "config.json").read_text())
    print(json.dumps({"architecture": config["architectures"][0], "trainable": True, "why_not": ""}))  # noqa: T201


def convert(folder: Path) -> None:
    for done in range(5):
        print(json.dumps({"done": done, "total": 4}), flush=True)  # noqa: T201
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")


def make_tasks(path: Path) -> None:
    if sys.argv[2] == "no_such_task":
        error = {"code": "unknown_task", "message": "There is no task 'no_such_task'.", "advice": ["Choose another."]}
        print(json.dumps({"error": error}))  # noqa: T201
        sys.exit(1)
    if sys.argv[2] == "crash":
        sys.exit("MemoryError: too many")
    count = int(sys.argv[sys.argv.index("--rows") + 1])
    path.write_text("".join(f'{{"prompt": "{n} + 1?", "solution": "{n + 1}"}}\n' for n in range(count)))
    print(json.dumps({"rows": count}))  # noqa: T201


def told(kind: str, texts: list[str]) -> list[dict[str, object]]:
    about = {"role": "user" if kind == "prompt" else "assistant", "turn": 1, "kind": kind, "trained": kind == "answer"}
    return [{"id": number, "text": text, **about} for number, text in enumerate(texts)]


PARTS = (
    *("weights", "adapter", "gradients", "optimizer", "activations"),
    *("cache", "gathered", "head", "dispatch", "reserve"),
)


def planned(asked: dict[str, Any]) -> dict[str, object]:
    training = asked["spec"]["training"]
    fits = training["per_device_train_batch_size"] < 1000
    parts = dict.fromkeys(PARTS, 0) | {"weights": 3 << 30, "activations": 1 << 30}
    change = {"settings": {"training.per_device_train_batch_size": 1}, "effect": "One at a time."}
    speed = asked["tokens_per_second"]
    return {
        "fits": fits,
        "parts": parts,
        "peak": 4 << 30,
        "room": (16 if fits else 2) << 30,
        "devices": len(asked["devices"]),
        "steps": 9,
        "seconds": 200.0 if speed is None else 9 * 1000 / speed,
        "why": ["Because."],
        "changes": [] if fits else [change],
    }


def plan_of(file: Path) -> None:
    devices = sys.argv[sys.argv.index("--devices") + 1] if "--devices" in sys.argv else "here"
    spec = json.loads(file.read_text())
    counts = {"total": 1000, "active": 500, "trainable": 10, "local": 125}
    rest = {"layout": {"shard": 8}, "per_device": {"total_gib": 4.0}, "parameters": counts, "tokens_per_step": 64}
    why = [f"Planned for {devices}.", f"Model {Path(spec['model']).name}."]
    told = planned({"spec": spec, "devices": [{}], "tokens_per_second": None}) | rest | {"disk_gib": 0.5, "why": why}
    if "--auto" in sys.argv:
        told |= {"settings": {"training.gradient_checkpointing": True, "layout.shard": 8}}
    print(json.dumps(told))  # noqa: T201


def answer(asked: dict[str, Any]) -> dict[str, object]:
    if asked["verb"] == "plan":
        return planned(asked)
    if asked["level"] == "never":
        message = "This model has no level “never”."
        return {"error": {"code": "bad_level", "message": message, "advice": ["Its levels are: low."]}}
    if asked["verb"] == "show":
        tokens = told("prompt", ["h", "i", "\n"]) + told("answer", ["y", "o"])
        row = {"level": "", "samples": [{"turn": 1, "side": "", "tokens": tokens}], "warnings": [], "refusals": []}
        return {"rows": [{"row": number, **row} for number in range(1, 21)]}
    cuts = {"every": 64, "total": [0, 100], "trained": [0, 40], "longest": [[5, 20]], "begins": [[3, 20]]}
    lengths = {"p50": 5, "p95": 5, "p99": 5, "max": 5, "histogram": [{"from": 5, "to": 6, "count": 20}]}
    return {"rendered": 20, "cuts": cuts, "lengths": lengths, "levels": [], "warnings": [], "problems": []}


def serve_data() -> None:
    for line in sys.stdin:
        asked = {"level": "", **json.loads(line)}
        print(json.dumps(answer(asked)), flush=True)  # noqa: T201


def standby() -> None:
    if not (told := os.read(0, 4096)):
        sys.exit(0)
    threading.Thread(target=lifeline, daemon=True).start()
    run = Path(told.decode().strip())
    log = os.open(run / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    (run / "stood-by").touch()
    train(run)


def lifeline() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock would abort an orderly exit
        pass
    os._exit(9)


if __name__ == "__main__":
    if sys.argv[1] == "serve-data":
        sys.exit(serve_data())
    if sys.argv[1] == "standby":
        sys.exit(standby())
    if os.environ.get("ATELIER_LIFELINE") == "1":
        threading.Thread(target=lifeline, daemon=True).start()
    if sys.argv[1] == "make-tasks":
        sys.exit(make_tasks(Path(sys.argv[3])))
    {"train": train, "describe": describe, "convert-starter": convert, "plan": plan_of}[sys.argv[1]](Path(sys.argv[2]))
