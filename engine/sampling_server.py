"""Answers from a vLLM server: it is given the adapter as it is now, and gives back tokens, which are scored here.

Every version of the adapter has a name of its own: under the same name a server may go on with keys and values that it
has kept of an older version (vllm-project/vllm issue 42125), and reads what was replaced in place anew at every step.
"""

import math
import os
import secrets
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from engine.adapter import write_adapter
from engine.build import Built
from engine.failure import Failure
from engine.sampling import Draw, Sampled

VARIABLE = "ATELIER_VLLM_URL"  # set by whoever runs the workers; a spec or a page cannot name a server
SECONDS = 1800.0  # for a whole answer: others may be before it
CONNECT_SECONDS = 10.0
ADVICE = ["Turn off Sample from vLLM.", "Ask whoever runs this studio to look at its sampling server."]


class Server:
    """A server that samples for one run. `folder`: of the adapters; the server sees it under the same path."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.client = httpx.Client(base_url=url, timeout=httpx.Timeout(SECONDS, connect=CONNECT_SECONDS))
        self.name, self.version = "", -1  # of the adapter that it was given last

    @classmethod
    def reached(cls, folder: Path) -> "Server":
        """The server that the environment names. Raises Failure when there is none, or it does not answer."""
        url = os.environ.get(VARIABLE, "")
        if not url:
            message = f"This run samples from a vLLM server, and none is named here: {VARIABLE} is not set."
            raise Failure("no_sampling_server", message, ADVICE)
        try:
            server = cls(url, folder)
        except httpx.InvalidURL as error:
            message = f"{VARIABLE} is no address of a server, such as http://127.0.0.1:8000."
            raise Failure("sampling_server_lost", message, ADVICE) from error
        server._ask("GET", "/health")
        return server

    def update(self, built: Built, version: int) -> None:
        """Give the server the adapter of this version, unless it has it. All processes of a layout call this."""
        if version == self.version:
            return
        name = built.mesh.once(lambda: self._new_name(version))
        write_adapter(built, self.folder / name)
        if built.mesh.main:
            told = {"lora_name": name, "lora_path": str((self.folder / name).resolve())}
            self._ask("POST", "/v1/load_lora_adapter", told)
            self.forget()
        built.mesh.once(lambda: None)  # nobody asks before it is there
        self.name, self.version = name, version

    def _new_name(self, version: int) -> str:
        """A name that no adapter had; before the first one, what a killed start of the run left behind is removed."""
        if not self.name:
            shutil.rmtree(self.folder, ignore_errors=True)
        return f"atelier-{secrets.token_hex(4)}-{version}"

    def forget(self) -> None:
        """Have the server drop the adapter that it was given, if it still answers."""
        if self.name:
            with suppress(Failure):
                self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": self.name})
            shutil.rmtree(self.folder / self.name, ignore_errors=True)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        draw: Draw,
        stop_ids: Sequence[int],
        max_new_tokens: int,
    ) -> list[list[Sampled]]:
        """One group of answers per prompt, as `engine.sampling.sample`; their log-probabilities are still to be found.

        Each answer is a request of its own: the server computes a group's prompt once by its prefix cache.
        """
        asked = [
            {
                "model": self.name,
                "prompt": list(prompt),
                "seed": seed,
                "max_tokens": max_new_tokens,
                "temperature": draw.temperature,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "stop_token_ids": list(stop_ids),
                "ignore_eos": True,  # what ends an answer is among the stop tokens
                "logprobs": 0,
                "return_token_ids": True,
            }
            for prompt, group in zip(prompts, seeds, strict=True)
            for seed in group
        ]
        with ThreadPoolExecutor(len(asked) or 1) as pool:
            answers = list(pool.map(self._answer, asked))
        count = len(seeds[0]) if seeds else 1
        return [answers[first : first + count] for first in range(0, len(answers), count)]

    def _answer(self, asked: dict[str, Any]) -> Sampled:
        try:
            choice = self._ask("POST", "/v1/completions", asked).json()["choices"][0]
            ids, told = [int(token) for token in choice["token_ids"]], choice["logprobs"]["token_logprobs"]
            reason = choice["finish_reason"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            message = f"The sampling server does not tell the tokens of its answers: {type(error).__name__} {error}."
            raise Failure(
                "sampling_server_unknown", message, ["It has to be vLLM 0.10.2 or newer.", *ADVICE]
            ) from error
        return Sampled(
            ids=ids,
            told=[math.nan if logprob is None else float(logprob) for logprob in told],
            mass=[0.0] * len(ids),
            kept=[None] * len(ids),
            truncated=reason != "stop",
        )

    def _ask(self, method: str, path: str, told: dict[str, Any] | None = None) -> httpx.Response:
        """One request. Raises Failure when it is not answered, or refused."""
        try:
            answer = self.client.request(method, path, json=told)
        except httpx.HTTPError as error:
            message = f"The sampling server at {VARIABLE} does not answer: {error}."
            raise Failure("sampling_server_lost", message, ADVICE) from error
        if answer.is_error:
            message = f"The sampling server refused {path}: {answer.status_code} {answer.text[:500]}"
            raise Failure("sampling_server_refused", message, ADVICE)
        return answer
