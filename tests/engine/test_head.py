"""The tiled head is the full logits, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from engine import head
from engine.head import Shape, attach, token_logprobs

SHAPES = [Shape(), Shape(scale=0.25), Shape(cap=3.0), Shape(scale=0.5, cap=2.0)]


def reference(hidden, weight, targets, bias, shape):
    logits = F.linear(hidden, weight, bias) * shape.scale
    logits = torch.tanh(logits / shape.cap) * shape.cap if shape.cap else logits
    return logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_equal_those_of_the_full_logits(shape, has_bias, monkeypatch):
    monkeypatch.setattr(head, "TILE_BYTES", 4 * 301 * 16)  # tiles of 16 tokens; 41 is not a multiple
    weight, targets = torch.randn(301, 24), torch.randint(301, (41,))
    bias = torch.randn(301) if has_bias else None
    ours, theirs = (torch.randn(41, 24, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    upstream = torch.randn(41)
    found = token_logprobs(ours, weight, targets, bias_V=bias, shape=shape)
    expected = reference(theirs, weight, targets, bias, shape)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (found * upstream).sum().backward()
    (expected * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


def test_the_logits_of_all_tokens_are_never_held_at_once(monkeypatch):
    seen = []
    linear = F.linear

    def spy(x, weight, bias=None):
        seen.append(len(x))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", spy)
    vocabulary = 262_144
    token_logprobs(torch.randn(200, 4), torch.randn(vocabulary, 4), torch.randint(vocabulary, (200,)))
    assert sum(seen) == 200
    assert max(seen) * vocabulary * 4 <= head.TILE_BYTES


def test_no_token_gives_no_log_probability():
    hidden = torch.randn(0, 8, requires_grad=True)
    found = token_logprobs(hidden, torch.randn(10, 8), torch.zeros(0, dtype=torch.long))
    found.sum().backward()
    assert found.shape == (0,)
    assert hidden.grad.shape == (0, 8)


def test_a_head_that_wants_gradients_is_refused_instead_of_silently_frozen():
    with pytest.raises(ValueError, match="no gradients"):
        token_logprobs(torch.randn(3, 8), torch.randn(10, 8, requires_grad=True), torch.zeros(3, dtype=torch.long))


def test_an_attached_head_still_gives_logits_when_asked_as_before():
    module = torch.nn.Linear(8, 10).requires_grad_(False)
    hidden = torch.randn(3, 8)
    before = module(hidden)
    attach(module, Shape())
    assert torch.equal(module(hidden), before)
    assert module(hidden, targets_N=torch.zeros(3, dtype=torch.long)).shape == (3,)
