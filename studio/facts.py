"""What a model folder says about itself, read from config.json and the safetensors headers; no weights, no torch."""

import json
import math
import re
import struct
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from studio.errors import Invalid

LONGEST_HEADER = 100 << 20  # the limit of the safetensors library
LONGEST_JSON = 64 << 20
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
TOKENIZER = re.compile(r".*tokenizer.*|.*\.(tiktoken|model)|vocab\.(json|txt)|tekken\.json")
TRAINABLE_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class Facts(BaseModel):
    """A model as cards and lists show it. `trainable` is False with a sentence in `why_not`."""

    model_config = ConfigDict(extra="ignore")

    architecture: str = ""
    model_type: str = ""
    parameters: int | None = None
    context_length: int | None = None
    bytes: int = 0
    dtype: str = ""
    has_chat_template: bool = False
    cached: bool = True
    trainable: bool = True
    why_not: str = ""
    licence: str = ""
    hidden_size: int | None = None
    layers: int | None = None
    vocab_size: int | None = None
    bridge: bool = False  # a person has agreed to close the thought that its chat template opens


def read_facts(folder: Path) -> Facts:
    """The facts of a model folder. Raises Invalid, with what to do, for a folder that no run can start from."""
    refuse_untrainable(folder)
    config = read_json(folder / "config.json")
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    merged = {**config, **{key: value for key, value in (inner or {}).items() if value is not None}}
    weights = weight_files(folder)
    parameters, dtypes = _count(weights)
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    facts = Facts(
        architecture=architecture,
        model_type=str(config.get("model_type", "")),
        parameters=parameters,
        context_length=next((n for key in CONTEXT_KEYS if (n := _whole(merged.get(key)))), None),
        bytes=sum(path.stat().st_size for path in weights),
        dtype=max(dtypes, key=lambda name: dtypes[name], default=""),
        has_chat_template=_has_chat_template(folder),
        licence=licence(folder),
        hidden_size=_whole(merged.get("hidden_size") or merged.get("n_embd")),
        layers=_whole(merged.get("num_hidden_layers") or merged.get("n_layer")),
        vocab_size=_whole(merged.get("vocab_size")),
    )
    if architecture and not architecture.endswith(TRAINABLE_ENDINGS):
        why = f"{architecture} does not write text; choose a model whose architecture ends in ForCausalLM."
        return facts.model_copy(update={"trainable": False, "why_not": why})
    return facts


def refuse_untrainable(folder: Path) -> None:
    """Raise Invalid when the folder holds no model that can be trained: which kind it is, and what to do."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise Invalid(
            f"The folder {folder} cannot be read: {error.strerror}.", code="model_unreadable", param="path"
        ) from error
    for code, applies, message in _refusals(folder, names):
        if applies:
            raise Invalid(message, code=code, param="path")


def _refusals(folder: Path, names: set[str]) -> list[tuple[str, bool, str]]:
    """(code, applies, sentence), the most telling first."""
    config, weights = "config.json" in names, any(name.endswith(".safetensors") for name in names)
    gguf = any(name.lower().endswith(".gguf") for name in names)
    adapter = "adapter_config.json" in names
    pickled = any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) and name != "training_args.bin" for name in names)
    where = f"The folder {folder}"
    return [
        (
            "model_is_adapter",
            adapter and not config,
            f"{where} holds an adapter, not a model: choose the base model that the adapter was trained on.",
        ),
        (
            "model_is_gguf",
            gguf and not weights,
            f"{where} holds GGUF files, which are made for running and not for training: "
            "choose the original model in safetensors format that they were made from.",
        ),
        (
            "model_has_no_config",
            not config,
            f"{where} has no config.json: choose a folder that a Hugging Face model was saved to.",
        ),
        (
            "model_is_pickled",
            pickled and not weights,
            f"{where} has its weights as pickle files (.bin), which can run code while they are read: "
            "save the model again as safetensors, or choose a revision that has them.",
        ),
        (
            "model_has_no_weights",
            not weights,
            f"{where} has a config.json but no weights (*.safetensors): copy or download them too.",
        ),
        (
            "model_has_no_tokenizer",
            not any(TOKENIZER.fullmatch(name) for name in names),
            f"{where} has a model but no tokenizer (tokenizer.json): copy or download it too.",
        ),
    ]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model; Invalid when its index names one that is missing."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(path for path in folder.glob("*.safetensors") if path.name != "adapter_model.safetensors")
    shards = read_json(index).get("weight_map")
    named = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
    missing = [name for name in named if Path(name).name != name or not (folder / name).is_file()]
    if missing or not named:
        listed = ", ".join(missing[:3]) or "all of them"
        raise Invalid(
            f"The model in {folder} is incomplete: {len(missing)} of {len(named)} weight files are missing ({listed}).",
            code="model_incomplete",
            param="path",
        )
    return [folder / name for name in named]


def _count(files: list[Path]) -> tuple[int, dict[str, int]]:
    """Parameters, exact, and their number per dtype."""
    dtypes: dict[str, int] = {}
    for path in files:
        for tensor in safetensors_header(path).values():
            number = math.prod(tensor["shape"])
            dtypes[tensor["dtype"]] = dtypes.get(tensor["dtype"], 0) + number
    return sum(dtypes.values()), dtypes


def safetensors_header(path: Path) -> dict[str, Any]:
    """Names, dtypes and shapes of a safetensors file; Invalid for a broken or cut one."""
    broken = Invalid(
        f"{path.name} in {path.parent} is not a whole safetensors file: copy or download it again.", code="model_broken"
    )
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST_HEADER:
                raise broken
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken from error
    if path.stat().st_size < 8 + length + end:
        raise broken
    return dict(header)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder; Invalid when it is none."""
    try:
        if path.stat().st_size > LONGEST_JSON:
            raise ValueError("too large")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{path.name} in {path.parent} cannot be read: {error}.", code="model_broken", param="path"
        ) from error
    if not isinstance(value, dict):
        raise Invalid(f"{path.name} in {path.parent} is not a JSON object.", code="model_broken", param="path")
    return value


def _has_chat_template(folder: Path) -> bool:
    """In a file of its own, or inside the tokenizer's configuration."""
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return True
    tokenizer = folder / "tokenizer_config.json"
    try:
        return bool(tokenizer.exists() and read_json(tokenizer).get("chat_template"))
    except Invalid:
        return False


def licence(folder: Path) -> str:
    """The licence named in the front matter of README.md, or ''."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as file:
            head = file.read(20_000)
    except OSError:
        return ""
    front = re.match(r"\s*---\r?\n(.*?)\r?\n---", head, re.DOTALL)
    found = re.search(r"^license:[ \t]*[\"']?([\w.+-]{1,80})", front.group(1), re.MULTILINE) if front else None
    return found.group(1) if found else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
