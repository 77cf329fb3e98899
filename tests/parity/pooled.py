"""Writes pooled.json of some families: log likelihoods and pooled hidden states of transformers.

    pip install -r requirements.txt
    python pooled.py [FAMILY ...]

Weights come from the formula of `generate.py`, and tokens are those of expected.json.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
sys.dont_write_bytecode = True

import torch
import transformers

import families
import formula
import reference
from generate import in_lines, packed, versions
from parts import VOCABULARY

HERE = Path(__file__).parent
# Plain layers, a bound on the logits, a factor of the logits, windows, short convolutions.
CHOSEN = ["llama", "qwen2", "gemma2", "granite", "lfm2"]
# Prompts of several lengths, each the beginning of the family's tokens.
LENGTHS = [1, 17, 80]


def main():
    transformers.logging.disable_progress_bar()
    configs = families.families()
    for family in sys.argv[1:] or CHOSEN:
        found = numbers(family, configs[family])
        (HERE / family / "pooled.json").write_text(in_lines(found))
        print(family, flush=True)


@torch.no_grad()
def numbers(family, config):
    """The log likelihood of each token but the first, and both poolings of each length."""
    weights = reference.tensors(family, config)
    tokens = formula.tokens(VOCABULARY, reference.TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        reference.write_folder(Path(folder), config, weights)
        model = reference.open_folder(Path(folder), config)
    whole = model(input_ids=torch.tensor([tokens]), use_cache=False)
    scores = torch.log_softmax(whole.logits[0].double(), dim=-1)
    own = [float(scores[at - 1, tokens[at]]) for at in range(1, len(tokens))]
    states = [model.model(input_ids=torch.tensor([tokens[:n]]), use_cache=False) for n in LENGTHS]
    states = [state.last_hidden_state[0].double() for state in states]
    return {
        "versions": versions(),
        "loglikelihoods": [round(score, 6) for score in own],
        "lengths": LENGTHS,
        "mean": [packed(state.mean(dim=0).numpy()) for state in states],
        "last": [packed(state[-1].numpy()) for state in states],
    }


if __name__ == "__main__":
    main()
