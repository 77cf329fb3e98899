"""Compares lm-eval's results through this server with those by transformers: lm_eval_client.py URL PACKAGES FOLDER

FOLDER has the model that the server runs: lm_eval_model.py wrote it. transformers' results are in
lm_eval_tasks/expected.json. `local-completions` sends the prompts as tokens in batches, then as texts side by side.
"""

import json
import sys
import urllib.request
from pathlib import Path

url, packages, folder = sys.argv[1:]
TASKS = Path(__file__).resolve().parent / "lm_eval_tasks"
sys.path += [packages, str(TASKS)]

from small_tasks import WINDOW, log_likelihoods  # noqa: E402

# Largest difference of a log likelihood, which is a sum over the tokens of a text.
TOLERANCE = 1e-3
# Perplexities are exponentials of log likelihoods.
METRIC_TOLERANCE = 1e-3
WAYS = {
    "tokens, 16 prompts in a request": {"batch_size": 16},
    "texts, 4 requests at once": {"num_concurrent": 4, "tokenized_requests": False},
}


def compare(task, found, expected):
    """Returns the largest difference of a log likelihood."""
    pairs = list(zip(found["log_likelihoods"], expected["log_likelihoods"], strict=True))
    largest = max(abs(one - other) for one, other in pairs)
    assert largest <= TOLERANCE, (task, largest, pairs)
    assert found["greedy"] == expected["greedy"], (task, found, expected)
    metrics = found["metrics"]
    assert metrics.keys() == expected["metrics"].keys(), (task, metrics)
    for name, value in expected["metrics"].items():
        assert abs(metrics[name] - value) <= METRIC_TOLERANCE * abs(value), (task, name, metrics)
    return largest


def main():
    expected = json.loads((TASKS / "expected.json").read_text())
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    with_model = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer": folder,
        # The window of whole texts is two tokens less than this.
        "max_length": WINDOW + 2,
        "max_retries": 1,
    }
    for way, settings in WAYS.items():
        found = log_likelihoods("local-completions", **with_model, **settings)
        for task, results in found.items():
            largest = compare(task, results, expected[task])
            count = len(results["log_likelihoods"])
            print(f"{way}: {task}: {count} log likelihoods differ by {largest:.1e} at most")


main()
