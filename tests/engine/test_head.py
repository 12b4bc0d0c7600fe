"""The tiled head is the full logits, in values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from engine import head
from engine.head import Shape, attach, token_logprobs, token_logprobs_and_entropy

SHAPES = [
    Shape(),
    Shape(scale=0.25),
    Shape(cap=3.0),
    Shape(scale=0.5, cap=2.0),
    Shape(temperature=0.7),
    Shape(scale=2.0, cap=5.0, temperature=1.5),
]


def reference(hidden, weight, targets, bias, shape):
    logits = F.linear(hidden, weight, bias) * shape.scale
    logits = torch.tanh(logits / shape.cap) * shape.cap if shape.cap else logits
    return (logits / shape.temperature).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


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
    logits = head._logits

    def spy(hidden, *more):
        seen.append(len(hidden))
        return logits(hidden, *more)

    monkeypatch.setattr(head, "_logits", spy)
    vocabulary = 262_144
    hidden, weight, targets = torch.randn(200, 4), torch.randn(vocabulary, 4), torch.randint(vocabulary, (200,))
    found = token_logprobs(hidden, weight, targets)
    assert sum(seen) == 200
    assert max(seen) * vocabulary * 4 <= 1.5 * head.TILE_BYTES
    expected = reference(hidden[-9:], weight, targets[-9:], None, Shape())
    torch.testing.assert_close(found[-9:], expected, atol=1e-5, rtol=1e-5)


def test_no_token_gives_no_log_probability():
    hidden = torch.randn(0, 8, requires_grad=True)
    found = token_logprobs(hidden, torch.randn(10, 8), torch.zeros(0, dtype=torch.long))
    found.sum().backward()
    assert found.shape == (0,)
    assert hidden.grad.shape == (0, 8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_head_in_training_gets_the_gradients_of_the_full_logits(shape, has_bias, monkeypatch):
    monkeypatch.setattr(head, "TILE_BYTES", 4 * 41 * 16)  # several tiles of tokens and of the vocabulary
    torch.manual_seed(1)
    wanted = {"hidden": torch.randn(41, 24), "weight": torch.randn(301, 24)}
    if has_bias:
        wanted["bias"] = torch.randn(301)
    targets, upstream = torch.randint(301, (41,)), torch.randn(41)
    ours = {name: value.clone().requires_grad_() for name, value in wanted.items()}
    theirs = {name: value.clone().requires_grad_() for name, value in wanted.items()}
    found = token_logprobs(ours["hidden"], ours["weight"], targets, bias_V=ours.get("bias"), shape=shape)
    expected = reference(theirs["hidden"], theirs["weight"], targets, theirs.get("bias"), shape)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (found * upstream).sum().backward()
    (expected * upstream).sum().backward()
    for name, value in ours.items():
        torch.testing.assert_close(value.grad, theirs[name].grad, atol=1e-5, rtol=1e-5, msg=name)


def test_a_weight_tied_to_the_embedding_gets_the_gradients_of_both():
    torch.manual_seed(1)
    ids, upstream = torch.randint(50, (20,)), torch.randn(20)
    ours, theirs = (torch.randn(50, 8, generator=torch.Generator().manual_seed(2)).requires_grad_() for _ in range(2))
    (token_logprobs(F.embedding(ids, ours), ours, ids.roll(-1)) * upstream).sum().backward()
    (reference(F.embedding(ids, theirs), theirs, ids.roll(-1), None, Shape()) * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("in_training", [False, True])
def test_entropy_comes_from_the_same_pass_and_carries_no_gradient(shape, in_training, monkeypatch):
    monkeypatch.setattr(head, "TILE_BYTES", 4 * 301 * 16)
    hidden, targets = torch.randn(41, 24, requires_grad=True), torch.randint(301, (41,))
    weight = torch.randn(301, 24, requires_grad=in_training)
    logprobs, entropy = token_logprobs_and_entropy(hidden, weight, targets, shape=shape)
    logits = F.linear(hidden, weight) * shape.scale
    logits = torch.tanh(logits / shape.cap) * shape.cap if shape.cap else logits
    expected = torch.distributions.Categorical(logits=logits / shape.temperature).entropy()
    torch.testing.assert_close(entropy, expected.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logprobs, token_logprobs(hidden, weight, targets, shape=shape))
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_an_attached_head_still_gives_logits_when_asked_as_before():
    module = torch.nn.Linear(8, 10).requires_grad_(False)
    hidden = torch.randn(3, 8)
    before = module(hidden)
    attach(module, Shape())
    assert torch.equal(module(hidden), before)
    assert module(hidden, targets_N=torch.zeros(3, dtype=torch.long)).shape == (3,)
    logprobs, entropy = module(hidden, targets_N=torch.zeros(3, dtype=torch.long), temperature=2.0, entropy=True)
    torch.testing.assert_close(logprobs, (before / 2).log_softmax(-1)[:, 0])
    assert entropy.shape == (3,)


def test_logits_of_the_last_tokens_are_one_product_with_the_weight():
    made, seen = torch.nn.Linear(4, 8), []
    plain = made.forward
    made.forward = lambda hidden: (seen.append(hidden.is_contiguous()), plain(hidden))[1]
    attach(made, Shape())
    hidden = torch.randn(3, 5, 4)
    torch.testing.assert_close(made(hidden[:, -1:]), plain(hidden)[:, -1:])
    assert seen == [True]
