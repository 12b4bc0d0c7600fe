"""Attention in blocks gives what plain attention gives, for any documents, answers and window."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import attention_blocks
from engine import attention_kernels as kernels
from engine.attention_kernels import Documents, Scoring

WIDTH = 8
SCALE = WIDTH**-0.5


@st.composite
def documents(draw):
    texts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    answers = [tuple(draw(st.lists(st.integers(1, 20), max_size=4))) for _ in texts]
    lengths = tuple(text + sum(own) for text, own in zip(texts, answers, strict=True))
    return Documents(lengths, tuple(answers) if any(answers) else ())


def run(attend, asked, seed, dtype, v_width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, 4, sum(asked.lengths), WIDTH), (1, 2, sum(asked.lengths), WIDTH), (1, 2, sum(asked.lengths), v_width)]
    given = [torch.randn(shape, generator=generator).to(torch.bfloat16).to(dtype).requires_grad_() for shape in shapes]
    out = attend(*given)
    (out * torch.randn(out.shape, generator=generator)).sum().backward()
    return [out.detach(), *(value.grad for value in given)]


@settings(max_examples=60)
@given(documents(), st.sampled_from([None, 1, 5, 30]), st.sampled_from([16, 128]), st.integers(0, 9))
def test_every_token_sees_what_it_may_and_nothing_else(asked, window, size, seed):
    parts = blocks_of(asked, window, size)

    def in_blocks(q, k, v):
        return attention_blocks._InBlocks.apply(q, k, v, parts, SCALE)

    def one_by_one(q, k, v):
        return kernels._one_by_one(q, k, v, asked, Scoring(SCALE, window=window))

    found = run(in_blocks, asked, seed, torch.bfloat16)
    expected = run(one_by_one, asked, seed, torch.float32)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.bfloat16
        assert float((one.float() - other).norm()) <= 0.02 * float(other.norm()) + 0.01


def blocks_of(asked, window, size):
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(attention_blocks, "BLOCK", size)
        return attention_blocks.blocks.__wrapped__(asked.lengths, asked.answers, window)


@given(documents(), st.sampled_from([None, 7]), st.sampled_from([16, 128]))
def test_every_query_is_in_one_block(asked, window, size):
    covered = [at for block in blocks_of(asked, window, size) for at in range(block.queries.start, block.queries.stop)]
    assert covered == list(range(sum(asked.lengths)))


def test_values_may_be_of_another_width_than_keys():
    asked = Documents((9, 30))
    how = Scoring(SCALE)
    found = run(lambda *each: kernels._in_blocks(*each, asked, how), asked, 1, torch.bfloat16, v_width=5)
    expected = run(lambda *each: kernels._one_by_one(*each, asked, how), asked, 1, torch.float32, v_width=5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(("texts", "kept"), [((40, 200), 4 * 240 * 240), ((600,), 0)])
def test_a_layer_keeps_its_inputs_and_the_weights_of_short_texts_only(texts, kept):
    saved = []
    asked = Documents(texts)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: saved.append(value) or value, lambda value: value):
        run(lambda *each: kernels._in_blocks(*each, asked, Scoring(SCALE)), asked, 1, torch.bfloat16)
    inputs = sum(texts) * WIDTH * (4 + 2 + 2)
    assert sum(value.numel() for value in saved if value.dtype == torch.bfloat16) == inputs + kept
