"""Load an adapter the way everybody does (transformers + stock PEFT) and compare its logits with the trainer's."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

# Per precision: mean Kullback-Leibler divergence per position in nats; the share of the adapter's own effect that may
# come on top, since rounding grows with what an adapter does; and root mean square difference of the logits relative to
# their spread. Means, since single logits in bfloat16 may lie far apart after two orders of the same sums.
LIMITS = {torch.float32: (1e-6, 0.0, 1e-4), torch.bfloat16: (2e-2, 0.02, 0.15)}


@torch.no_grad()
def verify(adapter: Path, base: str, probe: Path, device: str = "cpu") -> dict[str, Any]:
    """The verdict: agrees, divergence, difference, effect (the adapter's own), message. Raises errors of loading."""
    transformers_logging.disable_progress_bar()
    with safe_open(str(probe), framework="pt") as file:
        ids_T, expected_TV = file.get_tensor("ids"), file.get_tensor("logits")
        dtype = torch.bfloat16 if "bfloat16" in (file.metadata() or {}).get("dtype", "") else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(adapter)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    model.to(device)
    ids_1T = ids_T[None].to(device)
    without_TV = model.eval()(input_ids=ids_1T, use_cache=False).logits[0].float().cpu()
    tuned = PeftModel.from_pretrained(model, str(adapter)).eval()
    found_TV = tuned(input_ids=ids_1T, use_cache=False).logits[0].float().cpu()
    divergence = _divergence(expected_TV, found_TV)
    effect = _divergence(expected_TV, without_TV)
    difference = float((found_TV - expected_TV).square().mean().sqrt() / expected_TV.std())
    floor, share, most_difference = LIMITS[dtype]
    limits = (floor + share * effect, most_difference)
    fault = _fault(tuned, adapter, (divergence, difference), limits)
    return {
        "agrees": not fault,
        "divergence": divergence,
        "difference": difference,
        "effect": effect,
        "vocabulary": len(tokenizer),
        "message": fault,
    }


def _fault(tuned: Any, adapter: Path, found: tuple[float, float], limits: tuple[float, float]) -> str:
    """What is wrong with the loaded adapter; empty if nothing is."""
    saved = load_file(adapter / "adapter_model.safetensors")
    loaded = get_peft_model_state_dict(tuned, save_embedding_layers=False)
    if saved.keys() != loaded.keys():
        return f"PEFT loaded {len(loaded)} of {len(saved)} tensors"
    if any(not torch.equal(value, loaded[name].to(value.device, value.dtype)) for name, value in saved.items()):
        return "PEFT loaded other values than were saved"
    (divergence, difference), (most_divergence, most_difference) = found, limits
    if divergence <= most_divergence and difference <= most_difference:
        return ""
    return (
        f"its logits differ from the trainer's (divergence {divergence:.2g} nats, at most {most_divergence:.2g}; "
        f"difference {difference:.2g} of their spread, at most {most_difference:.2g})"
    )


def _divergence(expected_TV: torch.Tensor, found_TV: torch.Tensor) -> float:
    """Mean KL(expected || found) over positions, in nats."""
    ours, theirs = expected_TV.log_softmax(-1), found_TV.log_softmax(-1)
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def main(adapter: Path, base: str, probe: Path, device: str) -> int:
    """Print the verdict as one JSON line; 0 when the logits agree."""
    try:
        verdict = verify(adapter, base, probe, device)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        verdict = {"agrees": False, "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(verdict))  # noqa: T201
    return 0 if verdict["agrees"] else 1
