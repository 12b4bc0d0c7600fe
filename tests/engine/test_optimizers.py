"""Every optimizer learns, resumes bit for bit, and is refused by name where it cannot run."""

import pytest
import torch

from engine import optimizers
from engine.failure import Failure
from engine.methods import METHODS
from engine.optimizers import StochasticAdamW, check_eight_bit, round_into
from tests.engine.runs import assert_resumes, pieces

OPTIMIZERS = ["adamw_torch_fused", "adamw_bf16", "adamw_8bit"]


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_R01_three_steps_and_three_resumed_are_six_straight_bit_for_bit(make_run, tmp_path, optim):
    big_enough_for_eight_bits = {"r": 64}  # bitsandbytes keeps fewer than 4096 elements in float32
    run = make_run(lora=big_enough_for_eight_bits, optimizer={"optim": optim}, training={"max_steps": 6})
    assert_resumes(run, tmp_path / "state", 3)


@pytest.mark.parametrize("optim", OPTIMIZERS[1:])
def test_every_optimizer_learns_as_fused_adamw_does(make_run, optim):
    last = []
    for name in ("adamw_torch_fused", optim):
        spec, plan, trainer = pieces(make_run(name, optimizer={"optim": name}, training={"max_steps": 10}))
        steps = list(METHODS["sft"](trainer, spec, plan))
        last.append(steps[-1].loss)
    assert last[1] == pytest.approx(last[0], rel=0.05)
    assert last[1] < steps[0].loss


def test_adamw_bf16_keeps_six_bytes_for_each_trained_parameter(make_run):
    spec, plan, trainer = pieces(make_run(optimizer={"optim": "adamw_bf16"}, training={"max_steps": 1}))
    list(METHODS["sft"](trainer, spec, plan))
    for value in trainer.built.parameters().values():
        kept = trainer.optimizer.state[value]
        held = sum(tensor.nbytes for tensor in (value, kept["exp_avg"], kept["exp_avg_sq"]))
        assert held == 6 * value.numel()


def test_stochastic_rounding_is_right_on_average_and_exact_for_what_bfloat16_holds():
    exact = torch.full((100_000,), 1.0 + 2**-10)  # an eighth of the way to the next bfloat16
    target = torch.empty(exact.shape, dtype=torch.bfloat16)
    round_into(target, exact, torch.Generator().manual_seed(1))
    assert set(target.tolist()) == {1.0, 1.0078125}
    assert float(target.double().mean()) == pytest.approx(1.0 + 2**-10, abs=5e-5)
    held = torch.randn(1000).bfloat16()
    round_into(target[:1000], held.float(), torch.Generator())
    assert torch.equal(target[:1000], held)


def test_steps_too_small_for_bfloat16_add_up():
    moved, plain = torch.nn.Parameter(torch.ones(4096).bfloat16()), torch.nn.Parameter(torch.ones(4096))
    ours = StochasticAdamW([moved], lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    theirs = torch.optim.AdamW([plain], lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for _ in range(50):
        moved.grad, plain.grad = torch.ones_like(moved), torch.ones_like(plain)
        ours.step()
        theirs.step()
    assert float(moved.detach().float().mean()) == pytest.approx(float(plain.detach().mean()), abs=2e-4)


def test_eight_bit_states_without_their_package_are_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(optimizers, "has_bitsandbytes", lambda: False)
    with pytest.raises(Failure, match="bitsandbytes, which is not installed") as refused:
        check_eight_bit(torch.device("cpu"))
    assert refused.value.advice[0] == "pip install bitsandbytes"


def test_eight_bit_states_on_a_device_without_kernels_are_refused():
    with pytest.raises(Failure, match="MPS"):
        check_eight_bit(torch.device("mps"))


def test_blocks_change_nothing(monkeypatch):
    def run():
        value = torch.nn.Parameter(torch.linspace(-1, 1, 1000).bfloat16())
        optimizer = StochasticAdamW([value], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        value.grad = torch.ones_like(value)
        optimizer.step()
        return value.detach().float()

    whole = run()
    monkeypatch.setattr(optimizers, "BLOCK", 300)
    assert float((run() - whole).abs().max()) <= 0.008  # other random bits, the same neighbours
