"""Prompts with answers to others: what a model thinks of them tells how far it is from where it started."""

import numpy as np

from engine.batches import Samples
from engine.documents import Document, Store


def mismatched(samples: Samples, limit: int) -> Samples:
    """Every prompt with the answer of the sample before it, the first with the last one's, cut at `limit` tokens.

    Samples of one answer each, as many and in the same order (Ethayarajh et al. 2024, section 4.1; paired as TRL does).
    """
    if samples.answers is None:
        return samples
    store = Store()
    ends, begins = samples.offsets[1:], samples.offsets[1:] - samples.answers[:, 0]
    for at, row in enumerate(samples.rows.tolist()):
        prompt, answer = (slice(samples.offsets[at], begins[at]), slice(begins[at - 1], ends[at - 1]))
        ids = np.concatenate([samples.ids[prompt], samples.ids[answer]])
        trained = np.concatenate([np.zeros(prompt.stop - prompt.start, np.bool_), samples.trained[answer]])
        whole = Document(ids, trained, (int(answer.stop - answer.start),))
        store.add(row, [whole.cut(limit) or whole])
    return store.samples()
