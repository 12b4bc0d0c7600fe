"""The result: an adapter in PEFT's format or a whole model, with tokenizer, card and spec, proven to load elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor

from engine import peft_format
from engine.build import Built
from engine.card import History, last_component, model_card, portable
from engine.data import Prepared
from engine.failure import Failure
from engine.layout import shard
from engine.lora import ADAPTER
from engine.render import serving
from engine.render.serving import Serving
from engine.spec import RunSpec
from engine.state import gather

SPEC = "atelier.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PROBE_TOKENS = 48
VERIFY_SECONDS = 1800


def base_name(model: str) -> str:
    """What an adapter calls its base: the Hub id (named in a model folder's `atelier.json`), or the folder's name."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    note = folder / SPEC
    if note.is_file():
        hub_id = json.loads(note.read_text(encoding="utf-8")).get("hub_id")
        if isinstance(hub_id, str) and _HUB_ID.fullmatch(hub_id):
            return hub_id
    cached = next((part for part in folder.resolve().parts if part.startswith("models--")), "")
    if cached.count("--") == 2:  # the Hub cache's own naming: models--org--name/snapshots/revision
        return cached.removeprefix("models--").replace("--", "/")
    return last_component(str(folder.resolve()))


def save_result(
    built: Built, tokenizer: Any, spec: RunSpec, prepared: Prepared, history: History, folder: Path
) -> None:
    """Write the result's folder, whole or not at all. Nothing in it tells where on this machine anything lies.

    All processes of a layout call this; the main one writes.
    """
    as_it_is = built.adapter is None and not built.mesh.degrees.sharded
    weights = {} if as_it_is else {name: value.detach() for name, value in built.parameters().items()}
    whole = gather(weights, built.placements, keep=built.mesh.main)
    if not built.mesh.main:
        return
    base = base_name(spec.model)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _save_weights(built, whole, base, partial)
        _save_tokenizer(tokenizer, prepared.serving, partial)
        shown = portable(spec, base)
        (partial / "README.md").write_text(model_card(shown, base, prepared, history), encoding="utf-8")
        (partial / SPEC).write_text(shown.model_dump_json(indent=2), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_adapter(built: Built, folder: Path) -> None:
    """Write the adapter as it is now in PEFT's format, whole or not at all; weights and config, nothing else.

    All processes of a layout call this; the main one writes.
    """
    whole = gather(
        {name: value.detach() for name, value in built.parameters().items()}, built.placements, keep=built.mesh.main
    )
    if not built.mesh.main:
        return
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    _save_weights(built, whole, base_name(built.source), partial)
    partial.rename(folder)


def _save_weights(built: Built, whole: Mapping[str, Tensor], base: str, folder: Path) -> None:
    if built.adapter is None:
        _save_model(built.model, whole, folder)
        return
    config = built.adapter.peft_config[ADAPTER]
    config.base_model_name_or_path = base
    named = peft_format.state_dict(built.adapter, built.model, whole)
    save_file(named, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    peft_format.config_of(built.model, config).save_pretrained(str(folder))


def _save_model(model: Any, whole: Mapping[str, Tensor], folder: Path) -> None:
    """A model whose weights are all trained, as it is, or out of the `whole` weights where it is split."""
    if not whole:
        model.save_pretrained(str(folder))
        return
    with shard.as_one(model):
        buffers = {name for name, _ in model.named_buffers()}
        kept = {name: value for name, value in model.state_dict().items() if name in buffers}
        model.save_pretrained(str(folder), state_dict={**kept, **whole})


def _save_tokenizer(tokenizer: Any, told: Serving, folder: Path) -> None:
    """The tokenizer's files as trained with, without the paths that transformers notes in them."""
    serving.save(tokenizer, told, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name_or_path", "local_files_only", "is_local"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")


@torch.no_grad()
def write_probe(built: Built, ids: list[int], path: Path) -> None:
    """Logits of the tuned and of the base model on up to 48 tokens, for the clean process to compare with."""
    model = built.model
    trained_with = model.config._attn_implementation
    model.eval()
    model.set_attn_implementation(built.native_attention)
    ids_1T = torch.tensor([ids[:PROBE_TOKENS]], device=built.device)
    try:
        logits = model(input_ids=ids_1T, use_cache=False).logits[0].float().cpu()
    finally:
        model.set_attn_implementation(trained_with)
    if not built.mesh.main:
        return
    save_file({"ids": ids_1T[0].cpu(), "logits": logits.contiguous()}, str(path), metadata={"dtype": str(built.dtype)})


def verify_result(folder: Path, spec: RunSpec, probe: Path, device: torch.device) -> dict[str, Any]:
    """Load the result in a clean process, stock PEFT or transformers, and compare logits. Failure unless they agree."""
    command = [sys.executable, "-m", "engine", "verify", str(folder), "--base", spec.model, "--probe", str(probe)]
    command += ["--quantization", spec.training.quantization]
    environment = {name: value for name, value in os.environ.items() if name != "ATELIER_LIFELINE"}
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    result = subprocess.run(
        [*command, "--device", device.type],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=VERIFY_SECONDS,
        check=False,
    )
    lines = result.stdout.strip().splitlines()
    verdict: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if result.returncode or not verdict.get("agrees"):
        sys.stderr.write(result.stderr)
        raise Failure(
            "result_not_proven",
            f"What was saved did not pass its check with {loader(spec)}: {verdict.get('message') or 'it ended early'}.",
            ["The last checkpoint is kept: resume the run to try again.", "Look at the end of the log."],
        )
    return verdict


def loader(spec: RunSpec) -> str:
    """What the result is proven to load with."""
    return "stock transformers" if spec.training.full_finetuning else "stock PEFT"
