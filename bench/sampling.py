"""`python -m bench.sampling`: groups of answers by the engine, by transformers' generate, and by its paged batching.

All sample from the same model with the same adapter in it, the same prompts and groups, and answers of the same length
(the stop token is one that no answer uses). The engine is measured beside each of the two others in turn; it alone
gives the log-probabilities and kept sets that exact ratios need.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from bench import versus
from bench.grpo import PROMPT_WORDS, spec_of, write_prompts
from engine.build import Built, build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.generate import generating, left_padded
from engine.sampling import Draw, sample

PAGE = 32  # tokens of a page of the cache


@dataclass
class Task:
    """Prompts to be answered, `answers` times each, with `tokens` tokens; `never`: a stop token that does not come."""

    built: Built
    prompts: Sequence[Sequence[int]]
    answers: int
    tokens: int
    never: int

    def ours(self) -> None:
        """The engine's sampler: every prompt computed once for its group."""
        seeds = [[100 * at + one for one in range(self.answers)] for at in range(len(self.prompts))]
        groups = sample(self.built, self.prompts, seeds, Draw(), [self.never], self.tokens)
        self.check([answer.ids for group in groups for answer in group])

    def generate(self) -> None:
        """One batch of `generate`, every prompt as often as it is answered."""
        ids_BT, mask_BT = left_padded(self.prompts, self.never, self.built.device)
        with torch.no_grad(), generating(self.built):
            out_BT = self.built.model.generate(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                generation_config=self.config(num_return_sequences=self.answers),
            )
        self.check(out_BT[:, ids_BT.shape[1] :].tolist())

    def continuous(self) -> None:
        """Continuous batching over a paged cache, in which the answers of a group share their prompt's pages."""
        longest = max(map(len, self.prompts)) + self.tokens
        pages = len(self.prompts) * self.answers * (-(-longest // PAGE) + 1)
        settings = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=pages,
            max_batch_tokens=max(512, sum(map(len, self.prompts))),
            return_logprobs=True,
            use_cuda_graph=False if self.built.device.type == "cpu" else None,
        )
        with generating(self.built):
            found = self.built.model.generate_batch(
                [list(prompt) for prompt in self.prompts],
                generation_config=self.config(num_return_sequences=self.answers),
                continuous_batching_config=settings,
            )
        self.check([one.generated_tokens for one in found.values()])

    def config(self, **more: Any) -> GenerationConfig:
        """Plain sampling of whole answers."""
        never = {"eos_token_id": self.never, "pad_token_id": self.never}
        plain = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": self.tokens}
        return GenerationConfig(**never, **plain, **more)

    def check(self, found: Sequence[Sequence[int]]) -> None:
        """Raises ValueError unless as many whole answers came as were asked for."""
        lengths = [len(ids) for ids in found]
        wanted = len(self.prompts) * self.answers
        if len(lengths) != wanted or sum(lengths) < 0.99 * wanted * self.tokens:
            raise ValueError(f"{wanted} answers of {self.tokens} tokens were asked for; there are {lengths}")


def task(model: str, folder: Path, words: int, asked: argparse.Namespace) -> Task:
    """Prompts of about so many words for the starter model with a fresh adapter."""
    rows = folder / f"{words}.jsonl"
    write_prompts(rows, words, asked.prompts)
    spec = spec_of(model, rows)
    tokenizer = load_tokenizer(spec)
    questions = prepare(spec, tokenizer, stop_ids(spec, tokenizer), lambda event: None).train.questions
    prompts = [] if questions is None else [prompt.ids for prompt in questions.prompts.values()]
    return Task(build(spec), prompts, asked.answers, asked.tokens, len(tokenizer) - 1)


def main() -> None:
    """Parse, measure, and print each comparison when it is done."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="model folder; default: the starter model, converted first")
    parser.add_argument("--prompt", choices=[*PROMPT_WORDS], action="append")
    parser.add_argument("--prompts", type=int, default=4, help="prompts at once")
    parser.add_argument("--answers", type=int, default=8, help="answers to each")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model or versus.starter_model(Path(scratch))
        for prompt in asked.prompt or PROMPT_WORDS:
            one = task(model, Path(scratch), PROMPT_WORDS[prompt], asked)
            for name, theirs in (("generate", one.generate), ("continuous", one.continuous)):
                found = versus.alternate(one.ours, theirs, asked.rounds)
                versus.say({f"{prompt} prompts, against {name}": found}, as_json=asked.json)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
