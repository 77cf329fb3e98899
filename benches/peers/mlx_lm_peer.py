"""mlx-lm's batch generator, measured on request.

Reads one JSON object a line from standard input and answers each with one JSON object
on a line of standard output, until the input ends. The other side of every comparison,
`benches/src/programs/model`, speaks the same lines:

    {"do": "hello"}                                     what is measured, and its settings
    {"do": "matmul", "rows": M, "inner": K, "columns": N}  f32 product: seconds, best of several
    {"do": "prefill", "prompt": [...]}                  seconds from prompt to first token
    {"do": "decode_open", "batch": B, "prompts": [[...], ...]}  prefill a batch, name it B
    {"do": "decode_run", "batch": B, "steps": S}        seconds of S steps of all sequences
    {"do": "decode_close", "batch": B}                  free the batch

An answer is {"ok": {...}} or {"error": "..."}. Between two answers nothing is computed,
so that the other side has the machine to itself.

usage: mlx_lm_peer.py PACKAGES MODEL
    PACKAGES  folder that mlx-lm was installed into
    MODEL     folder with config.json and safetensors in f32
"""

import json
import os
import sys
import time
from pathlib import Path

# Only JSON lines may go to the real standard output: a library that prints would break the
# protocol.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

packages, model_folder = sys.argv[1:]
sys.path.insert(0, packages)
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx  # noqa: E402
import mlx_lm  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

MATMUL_ATTEMPTS = 7

# More than any measurement takes: sequences end when they are removed.
OUTPUT_TOKENS_MAX = 1_000_000


class Batch:
    """Sequences that are being decoded."""

    def __init__(self, model, prompts):
        # All prompts in one prefill, so that all sequences are of equal length: the
        # default of eight would start half of sixteen some tokens ahead.
        self.generator = BatchGenerator(
            model,
            max_tokens=OUTPUT_TOKENS_MAX,
            prefill_batch_size=len(prompts),
            completion_batch_size=len(prompts),
        )
        self.uids = self.generator.insert([list(prompt) for prompt in prompts])

    def step(self):
        """The next token of every sequence, in the order of the prompts."""
        tokens = {r.uid: r.token for r in self.generator.next_generated()}
        return [tokens[uid] for uid in self.uids]

    def settle(self):
        """Waits for the step that the generator has started ahead of time."""
        mx.synchronize(self.generator.stream)

    def close(self):
        self.settle()
        self.generator.remove(self.uids)
        self.generator.close()
        mx.clear_cache()


class Peer:
    def __init__(self, model):
        self.model = model
        self.batches = {}

    def hello(self):
        parameters = [array for _, array in tree_flatten(self.model.parameters())]
        return {
            "name": f"mlx-lm {mlx_lm.__version__}",
            "mlx": mx.__version__,
            "types": sorted({str(array.dtype) for array in parameters}),
            "weight_bytes": sum(array.nbytes for array in parameters),
            "vocab_size": self.model.args.vocab_size,
        }

    def matmul(self, rows, inner, columns):
        a = mx.random.uniform(shape=(rows, inner))
        b = mx.random.uniform(shape=(inner, columns))
        mx.eval(a, b)
        return {"seconds": min(timed(lambda: mx.eval(a @ b)) for _ in range(MATMUL_ATTEMPTS))}

    def prefill(self, prompt):
        started = time.perf_counter()
        batch = Batch(self.model, [prompt])
        tokens = batch.step()
        seconds = time.perf_counter() - started
        batch.close()
        return {"seconds": seconds, "tokens": [tokens]}

    def decode_open(self, batch, prompts):
        self.batches[batch] = Batch(self.model, prompts)
        tokens = self.batches[batch].step()
        self.batches[batch].settle()
        return {"tokens": [tokens]}

    def decode_run(self, batch, steps):
        # When the clock starts, the step after the last answer is done already; before it
        # stops, the one after this answer is: what is timed is `steps` whole steps.
        batch = self.batches[batch]
        started = time.perf_counter()
        tokens = [batch.step() for _ in range(steps)]
        batch.settle()
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    def decode_close(self, batch):
        self.batches.pop(batch).close()
        return {}


def timed(work):
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main():
    model, _ = load_model(Path(model_folder))
    peer = Peer(model)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(peer, request.pop("do"))(**request)}
        except Exception as error:  # whatever it is, the other end should hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


main()
