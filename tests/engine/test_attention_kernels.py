"""Which attention kernel serves whom, and that each gives what plain attention gives, in values and gradients."""

import pytest
import torch

from engine import attention_blocks
from engine import attention_kernels as kernels
from engine.attention_kernels import Documents, Scoring

LENGTHS = Documents((9, 30, 1, 14))
SCALE = 8**-0.5


def inputs(dtype=torch.float32, heads=4, groups=2):
    generator = torch.Generator().manual_seed(1)
    shapes = [(1, count, sum(LENGTHS.lengths), 8) for count in (heads, groups, groups)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def run(kernel, how, dtype=torch.float32):
    given = inputs(dtype)
    out = kernel(*given, LENGTHS, how)
    (out.float() * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(value.grad for value in given)]


def textbook(q, k, v, documents, how):
    """Softmax of masked products over the whole sequence at once."""
    total = sum(documents.lengths)
    document = torch.repeat_interleave(torch.arange(len(documents.lengths)), torch.tensor(documents.lengths))
    back = torch.arange(total)[:, None] - torch.arange(total)[None]
    seen = (document[:, None] == document[None]) & (back >= 0) & (back < (how.window or total))
    k, v = (value.float().repeat_interleave(q.shape[1] // k.shape[1], 1) for value in (k, v))
    scores = (q.float() @ k.transpose(-1, -2)) * how.scale
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flash_on_cpu_is_plain_attention(dtype):
    found = run(kernels._flash_on_cpu, Scoring(SCALE), dtype)
    expected = run(textbook, Scoring(SCALE), dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("how", [Scoring(SCALE), Scoring(SCALE, window=5)], ids=["all", "window"])
def test_one_by_one_is_plain_attention(how):
    for one, other in zip(run(kernels._one_by_one, how), run(textbook, how), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_flash_on_cpu_keeps_inputs_and_output_in_their_own_precision():
    kept = []
    q, k, v = inputs(torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        kernels._flash_on_cpu(q, k, v, LENGTHS, Scoring(SCALE)).sum().backward()
    wide = [value for value in kept if value.shape[-1] == 8]
    assert len(wide) == 4
    assert all(value.dtype == torch.bfloat16 for value in wide)


class Anywhere:
    """What `kernels._kernel` looks at in a tensor that this machine has no device for."""

    def __init__(self, device, dtype, heads=4, width=64):
        self.device, self.dtype, self.shape = torch.device(device), dtype, (1, heads, 10, width)


def chosen(device, dtype, how, documents=LENGTHS, v_width=64):
    q, k = Anywhere(device, dtype), Anywhere(device, dtype, heads=2)
    return kernels._kernel(q, k, Anywhere(device, dtype, 2, v_width), documents, how)


def test_a_kernel_serves_only_what_it_can(monkeypatch):
    monkeypatch.setattr(kernels, "_is_variable_length_right", lambda *_: True)
    monkeypatch.setattr(attention_blocks, "serves", lambda: True)
    plain = Scoring(SCALE)
    assert chosen("cpu", torch.bfloat16, Scoring(SCALE, window=5), Documents((9,), ((4,),)), 32) == "in blocks"
    monkeypatch.setattr(attention_blocks, "serves", lambda: False)
    for dtype in (torch.bfloat16, torch.float32):
        assert chosen("cpu", dtype, plain) == "flash per document"
        assert chosen("cpu", dtype, Scoring(SCALE, window=30)) == "flash per document"  # no document is longer
        assert chosen("cpu", dtype, Scoring(SCALE, window=29)) == "one by one"
    assert chosen("cuda", torch.bfloat16, plain) == "variable-length"
    assert chosen("cuda", torch.bfloat16, Scoring(SCALE, window=5)) == "variable-length"
    assert chosen("cuda", torch.float32, plain) == "one by one"
    assert chosen("mps", torch.bfloat16, plain) == "one by one"
    for other in (Scoring(SCALE, softcap=2.0), Scoring(SCALE, dropout=0.1), Scoring(SCALE, sinks=torch.zeros(4))):
        assert chosen("cuda", torch.bfloat16, other) == "one by one"
        assert chosen("cpu", torch.bfloat16, other) == "one by one"
    assert chosen("cuda", torch.bfloat16, plain, v_width=32) == "one by one"
    assert chosen("cuda", torch.bfloat16, plain, Documents((9,), ((4,),))) == "one by one"


def test_variable_length_attention_is_asked_for_causal_documents_and_the_window(monkeypatch):
    asked = {}

    def spy(q, k, v, borders, _, longest, __, **settings):
        asked.update(settings, borders=borders.tolist(), longest=longest, shapes=(q.shape, k.shape, v.shape))
        return torch.zeros_like(q)

    monkeypatch.setattr(kernels, "varlen_attn", spy)
    out = kernels._variable_length(*inputs(), LENGTHS, Scoring(SCALE, window=5))
    assert out.shape == (1, 54, 4, 8)
    assert asked["borders"] == [0, 9, 39, 40, 54]
    assert asked["longest"] == 30
    assert asked["window_size"] == (4, 0)  # itself and four before
    assert asked["shapes"][1] == (54, 2, 8)
    assert asked["enable_gqa"]
    kernels._variable_length(*inputs(), LENGTHS, Scoring(SCALE))
    assert asked["window_size"] == (-1, 0)


@pytest.mark.parametrize(
    ("kernel", "trusted"),
    [
        (lambda q, k, v, documents, how: kernels._one_by_one(q, k, v, documents, how), True),
        (lambda q, k, v, documents, how: kernels._one_by_one(q, k, v, Documents((q.shape[2],)), how), False),
        (lambda q, k, v, documents, how: kernels._one_by_one(q, k, v, documents, Scoring(how.scale)), False),
    ],
    ids=["right", "documents see each other", "no window"],
)
def test_a_kernel_that_is_wrong_here_is_not_trusted(kernel, trusted, monkeypatch):
    monkeypatch.setattr(kernels, "_variable_length", kernel)
    kernels._is_variable_length_right.cache_clear()
    assert kernels._is_variable_length_right(torch.device("cpu"), torch.bfloat16, (4, 2, 8), False) is trusted
    kernels._is_variable_length_right.cache_clear()


def test_a_kernel_that_does_not_run_here_is_not_trusted():
    assert not kernels._is_variable_length_right(torch.device("cpu"), torch.bfloat16, (4, 2, 8), True)


def test_the_log_names_each_kernel_once(capsys):
    kernels.say.cache_clear()
    for _ in range(3):
        kernels.attend(*inputs(), LENGTHS, Scoring(SCALE))
    assert capsys.readouterr().err == "attention: flash per document on cpu in float32\n"
