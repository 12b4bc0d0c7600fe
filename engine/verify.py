"""Load a result the way everybody does (transformers, stock PEFT) and compare its logits with the trainer's."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging as transformers_logging

from engine import float8, peft_format
from engine.auto import class_for
from engine.quantized import hold_in_float8, keep_trainable, loading

ADAPTER_CONFIG = "adapter_config.json"
# Per precision: mean Kullback-Leibler divergence per position in nats; the share of the adapter's own effect that may
# come on top, since rounding grows with what an adapter does; and root mean square difference of the logits relative to
# their spread. Means, since single logits in bfloat16 may lie far apart after two orders of the same sums.
LIMITS = {torch.float32: (1e-6, 0.0, 1e-4), torch.bfloat16: (2e-2, 0.02, 0.15)}


@torch.no_grad()
def verify(result: Path, base: str, probe: Path, device: str = "cpu", quantization: str = "none") -> dict[str, Any]:
    """The verdict: agrees, divergence, difference, effect (of the training), message. Raises errors of loading."""
    transformers_logging.disable_progress_bar()
    with safe_open(str(probe), framework="pt") as file:
        ids_T, expected_TV = file.get_tensor("ids"), file.get_tensor("logits")
        dtype = torch.bfloat16 if "bfloat16" in (file.metadata() or {}).get("dtype", "") else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(result)
    model = _load(base, dtype, device, quantization)
    ids_1T = ids_T[None].to(device)
    without_TV = model(input_ids=ids_1T, use_cache=False).logits[0].float().cpu()
    if (result / ADAPTER_CONFIG).is_file():
        tuned = PeftModel.from_pretrained(model, str(result)).eval()
        if quantization == "fp8":
            hold_in_float8(model.get_decoder())
    else:
        tuned = _load(str(result), dtype, device)
    found_TV = tuned(input_ids=ids_1T, use_cache=False).logits[0].float().cpu()
    divergence = _divergence(expected_TV, found_TV)
    effect = _divergence(expected_TV, without_TV)
    difference = float((found_TV - expected_TV).square().mean().sqrt() / expected_TV.std())
    floor, share, most_difference = LIMITS[dtype]
    limits = (floor + share * effect, most_difference)
    fault = _fault(tuned, result, (divergence, difference), limits)
    return {
        "agrees": not fault,
        "divergence": divergence,
        "difference": difference,
        "effect": effect,
        "vocabulary": len(tokenizer),
        "message": fault,
    }


def _load(source: str, dtype: torch.dtype, device: str, quantization: str = "none") -> Any:
    how = loading(quantization, dtype, torch.device(device))
    whole = float8.unpacking(AutoConfig.from_pretrained(source).to_dict())
    model: Any = class_for(source).from_pretrained(source, **{"dtype": dtype, **whole, **how})
    if not how:
        model.to(device)
    keep_trainable(model)
    return model.eval()


def _fault(tuned: Any, result: Path, found: tuple[float, float], limits: tuple[float, float]) -> str:
    """What is wrong with what was loaded; empty if nothing is."""
    saved = {name: value for path in result.glob("*.safetensors") for name, value in load_file(path).items()}
    is_adapter = isinstance(tuned, PeftModel)
    if is_adapter:
        saved, loaded = peft_format.as_read(tuned, saved), get_peft_model_state_dict(tuned, save_embedding_layers=False)
    else:
        loaded = _as_stored(tuned)
    if not saved or saved.keys() - loaded.keys() or (is_adapter and saved.keys() != loaded.keys()):
        return f"{len(loaded)} of {len(saved)} tensors were loaded"
    if any(not torch.equal(value, loaded[name].to(value.device, value.dtype)) for name, value in saved.items()):
        return "other values were loaded than were saved"
    (divergence, difference), (most_divergence, most_difference) = found, limits
    if divergence <= most_divergence and difference <= most_difference:
        return ""
    return (
        f"its logits differ from the trainer's (divergence {divergence:.2g} nats, at most {most_divergence:.2g}; "
        f"difference {difference:.2g} of their spread, at most {most_difference:.2g})"
    )


def _as_stored(model: Any) -> dict[str, torch.Tensor]:
    """A model's weights by their names in files; many classes rename and join what they read (experts, one by one)."""
    found: dict[str, torch.Tensor] = revert_weight_conversion(model, model.state_dict())
    return found


def _divergence(expected_TV: torch.Tensor, found_TV: torch.Tensor) -> float:
    """Mean KL(expected || found) over positions, in nats."""
    ours, theirs = expected_TV.log_softmax(-1), found_TV.log_softmax(-1)
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def main(result: Path, base: str, probe: Path, device: str, quantization: str) -> int:
    """Print the verdict as one JSON line; 0 when the logits agree."""
    try:
        verdict = verify(result, base, probe, device, quantization)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        verdict = {"agrees": False, "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(verdict))  # noqa: T201
    return 0 if verdict["agrees"] else 1
