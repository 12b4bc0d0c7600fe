"""Keys and values that go round a ring of processes give the attention of the whole sequence, to the last digits."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import attention_kernels
from engine.attention_kernels import Documents, Scoring
from engine.layout import ring
from engine.layout.mesh import Group

SIZES = (2, 3, 4)
WIDTH, VALUES = 8, 6


class Meeting:
    """Where the threads of a ring hand each other tensors."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=30)
        self.box = [None] * size


class Threads(Group):
    """A ring whose members are threads of this process."""

    def passing(self, value, by=1):
        self.handle.box[self.index] = value.clone()
        self.handle.barrier.wait()
        found = self.handle.box[(self.index - by) % self.size]
        self.handle.barrier.wait()
        return lambda: found


def random(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(work, inputs, slope):
    inputs = [value.clone().requires_grad_() for value in inputs]
    out = work(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, slope)]


def in_a_ring(size, inputs, slope, documents, how):
    """Output and gradients, put together from those of every member."""
    meeting, length = Meeting(size), slope.shape[1] // size
    q, k, v, sinks = inputs

    def member(index):
        at = slice(index * length, (index + 1) * length)

        def work(q, k, v, sinks):
            asked = Scoring(
                how.scale, window=how.window, softcap=how.softcap, sinks=sinks if how.sinks is not None else None
            )
            out = ring.attend(q, k, v, documents, asked, Threads(size, index, meeting))
            return out if how.sinks is not None else out + 0 * sinks.sum()

        return gradients(work, [q[:, :, at], k[:, :, at], v[:, :, at], sinks], slope[:, at])

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(member, range(size)))
    out, grad_q, grad_k, grad_v, grad_sinks = zip(*found, strict=True)
    return [torch.cat(out, 1), *(torch.cat(each, 2) for each in (grad_q, grad_k, grad_v)), sum(grad_sinks)]


def on_one(inputs, slope, documents, how):
    def work(q, k, v, sinks):
        asked = Scoring(
            how.scale, window=how.window, softcap=how.softcap, sinks=sinks if how.sinks is not None else None
        )
        out = attention_kernels.KERNELS["one by one"](q, k, v, documents, asked)
        return out if how.sinks is not None else out + 0 * sinks.sum()

    return gradients(work, inputs, slope)


@st.composite
def documents_of(draw, size):
    texts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    answers = tuple(tuple(draw(st.lists(st.integers(1, 9), max_size=3))) for _ in texts)
    lengths = [text + sum(own) for text, own in zip(texts, answers, strict=True)]
    lacking = -sum(lengths) % size
    if lacking:
        lengths, answers = [*lengths, lacking], (*answers, ())
    return Documents(tuple(lengths), answers if any(answers) else ())


@settings(max_examples=40)
@given(st.data())
def test_a_ring_gives_values_and_gradients_of_the_whole_sequence(data):
    size = data.draw(st.sampled_from(SIZES))
    documents = data.draw(documents_of(size))
    groups = data.draw(st.sampled_from((1, 2)))
    sinks = random(4, seed=4)
    how = Scoring(
        scale=WIDTH**-0.5,
        window=data.draw(st.sampled_from((None, 5))),
        softcap=data.draw(st.sampled_from((None, 1.5))),
        sinks=sinks if data.draw(st.booleans()) else None,
    )
    length = sum(documents.lengths)
    shapes = ((4, WIDTH), (groups, WIDTH), (groups, VALUES))
    inputs = [*(random(1, heads, length, width, seed=at) for at, (heads, width) in enumerate(shapes)), sinks]
    slope = random(1, length, 4, VALUES, seed=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "TILE_BYTES", 1)  # tiles of 16 queries
        found = in_a_ring(size, inputs, slope, documents, how)
    for mine, theirs in zip(found, on_one(inputs, slope, documents, how), strict=True):
        assert float((mine - theirs).abs().max()) < 1e-12


def test_nothing_is_passed_on_further_than_documents_and_windows_reach():
    def turns(lengths, window=None):
        return ring.Sight.of(Documents(lengths), window, torch.device("cpu")).turns(Group(4))

    assert turns((64,)) == 3
    assert turns((16, 16, 16, 16)) == 0
    assert turns((8, 16, 40)) == 2
    assert turns((64,), window=5) == 1


def test_attention_with_dropout_is_not_passed_round():
    q, k, v = (random(1, 2, 4, 8, seed=at) for at in range(3))
    with pytest.raises(ValueError, match="dropout"):
        ring.attend(q, k, v, Documents((8,)), Scoring(1.0, dropout=0.1), Group(2))
