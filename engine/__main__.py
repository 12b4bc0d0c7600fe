"""`python -m engine <verb>`, the command line. Arguments are parsed before torch is imported, so help is instant."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from engine import lifeline

# OpenMP threads that wait for one another spin for milliseconds by default. Where other processes want the cores too
# (a web server, a browser), that made small matrix products ten times slower; this many turns are a microsecond or so.
SPIN_COUNT = "1000"


def parser() -> argparse.ArgumentParser:
    """The verbs and their arguments."""
    top = argparse.ArgumentParser(prog="python -m engine", description="Train and check adapters, without any server.")
    verbs = top.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="train the run in a folder with a spec.json; resumes by itself")
    train.add_argument("run_dir", type=Path)
    train.add_argument("--hosts", type=int, default=1, help="hosts that the run is spread over, all on one file system")
    train.add_argument("--host", type=int, default=0, help="which of them this is, from 0")
    train.add_argument("--meet", default="127.0.0.1:0", help="address:port on host 0 where they find one another")
    verbs.add_parser("standby", help="load the libraries, then train the run whose folder is the first line of stdin")
    verify = verbs.add_parser(
        "verify", help="load an adapter or model in the stock way and compare its logits with the trainer's"
    )
    verify.add_argument("result_dir", type=Path)
    verify.add_argument("--base", required=True, help="model folder or Hub id")
    verify.add_argument("--probe", required=True, type=Path, help="safetensors file of ids and logits")
    verify.add_argument("--device", default="cpu")
    verify.add_argument("--quantization", default="none", help="how the base was held while training")
    tasks = verbs.add_parser("make-tasks", help="rows of a reasoning-gym task as a JSONL file")
    tasks.add_argument("task")
    tasks.add_argument("out", type=Path)
    tasks.add_argument("--rows", type=int, default=500)
    tasks.add_argument("--seed", type=int, default=0)
    chat = verbs.add_parser("chat", help="answer conversations with a run's result, JSON lines, until stdin ends")
    chat.add_argument("result_dir", type=Path)
    chat.add_argument("--base", required=True, help="model folder or Hub id")
    chat.add_argument("--level", help="reasoning level; default: the one that the run was trained at")
    chat.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token always")
    chat.add_argument("--max-new-tokens", type=int, default=512)
    convert = verbs.add_parser("convert-starter", help="make the starter model's folder out of its installed package")
    convert.add_argument("out_dir", type=Path)
    describe = verbs.add_parser("describe", help="facts about a model folder as JSON, without loading its weights")
    describe.add_argument("model_dir", type=Path)
    plan = verbs.add_parser("plan", help="what a run will need on each device, and how long it takes, as JSON")
    plan.add_argument("spec", type=Path, help="a spec as JSON, like a run's spec.json")
    plan.add_argument(
        "--devices", default="", help="such as 8xB300, 2x24GB or cpu:16GB; default: those of this machine"
    )
    plan.add_argument("--auto", action="store_true", help="choose layout, recompute, micro-batch and length first")
    plan.add_argument("--full", action="store_true", help="more numbers, for pages")
    add_data_verbs(verbs)
    return top


def add_data_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The verbs that look at a dataset as a model would learn it."""
    show = verbs.add_parser("show-data", help="one row of a dataset as the tokens that a model would see, as JSON")
    check = verbs.add_parser("check-data", help="a whole dataset in numbers, with all its problems, as JSON")
    for verb in (show, check):
        verb.add_argument("file", type=Path)
        verb.add_argument("--model", type=Path, required=verb is show, help="model folder")
        verb.add_argument("--spec", default="{}", help="settings of the run that it is read for, as JSON")
    show.add_argument("--row", type=int, default=1, help="number of the row, from 1")
    verbs.add_parser("serve-data", help="answer such questions, one JSON line each, until stdin ends")


def main(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    asked = parser().parse_args(arguments)
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    if asked.verb in READERS:  # they end with their input, and hold the lifeline themselves
        return READERS[asked.verb](asked)
    lifeline.hold(grace_seconds=0)  # whoever takes the run over must find no engine in its folder
    return VERBS[asked.verb](asked)


def _serve_data(_: argparse.Namespace) -> int:
    from engine import serve_data

    return serve_data.main()


def _chat(asked: argparse.Namespace) -> int:
    from engine import chat

    how = chat.Talk(asked.temperature, asked.max_new_tokens)
    return chat.main(asked.result_dir, asked.base, asked.level, how)


def _standby(_: argparse.Namespace) -> int:
    from engine import extras

    extras.settle(asked=True)  # it may be
    from engine import standby

    return standby.main()


def _train(asked: argparse.Namespace) -> int:
    from engine import extras

    extras.settle(asked=extras.asked_in(asked.run_dir))
    from engine.meeting import Meeting
    from engine.train import train

    return train(asked.run_dir, Meeting(asked.hosts, asked.host, asked.meet))


def _verify(asked: argparse.Namespace) -> int:
    from engine import extras

    extras.settle(asked=asked.quantization == "nf4")
    from engine import verify

    return verify.main(asked.result_dir, asked.base, asked.probe, asked.device, asked.quantization)


def _convert_starter(asked: argparse.Namespace) -> int:
    from engine import starter

    return starter.main(asked.out_dir)


def _plan(asked: argparse.Namespace) -> int:
    from engine.plan import command

    return command.main(asked.spec, asked.devices, choose=asked.auto, full=asked.full)


def _look_at_data(asked: argparse.Namespace) -> int:
    from engine import inspect_data
    from engine.spec import RunSpec

    values = {"model": "", **json.loads(asked.spec)}
    spec = RunSpec.model_validate({**values, "data": {"dataset": str(asked.file), **values.get("data", {})}})
    if asked.verb == "show-data":
        return inspect_data.show_main(asked.file, asked.model, asked.row, spec)
    return inspect_data.check_main(asked.file, asked.model, spec)


def _make_tasks(asked: argparse.Namespace) -> int:
    from engine import tasks

    return tasks.main(asked.task, asked.rows, asked.seed, asked.out)


def _describe(asked: argparse.Namespace) -> int:
    from engine import describe

    return describe.main(asked.model_dir)


Verb = Callable[[argparse.Namespace], int]
READERS: dict[str, Verb] = {"serve-data": _serve_data, "chat": _chat, "standby": _standby}
VERBS: dict[str, Verb] = {
    "train": _train,
    "verify": _verify,
    "convert-starter": _convert_starter,
    "plan": _plan,
    "show-data": _look_at_data,
    "check-data": _look_at_data,
    "make-tasks": _make_tasks,
    "describe": _describe,
}


if __name__ == "__main__":
    sys.exit(main())
