"""Writes lm_eval_tasks/expected.json: lm_eval_reference.py FOLDER

It has what lm-eval finds with transformers, of the model in FOLDER, which lm_eval_model.py writes. No check runs this
script: it needs torch, and the packages of lm_eval_requirements.txt with lm-eval's extra `hf`.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

TASKS = Path(__file__).resolve().parent / "lm_eval_tasks"
sys.path.append(str(TASKS))

from small_tasks import WINDOW, log_likelihoods  # noqa: E402

import torch  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

PACKAGES = ("torch", "transformers", "lm_eval")
# The items must show what a server makes of these.
ENDED, GREEDY = 2, 4


@torch.no_grad()
def ended(model):
    """The number of continuations after which the end of the output is likeliest."""
    lines = (TASKS / "continuation.jsonl").read_text().splitlines()
    texts = [item["context"] + item["continuation"] for item in map(json.loads, lines)]
    prompts = [torch.tensor([model.tok_encode(text)]) for text in texts]
    likeliest = [model.model(prompt).logits[0, -1].argmax().item() for prompt in prompts]
    return likeliest.count(model.eot_token_id)


def main():
    folder = sys.argv[1]
    model = HFLM(folder, dtype="float32", device="cpu", batch_size=1, max_length=WINDOW)
    found = log_likelihoods(model)
    assert ended(model) >= ENDED
    assert sum(found["continuation"]["greedy"]) >= GREEDY
    expected = {"versions": {name: version(name) for name in PACKAGES}, **found}
    fields = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items())
    (TASKS / "expected.json").write_text("{\n" + ",\n".join(fields) + "\n}\n")


main()
