"""transformers' pooled states: the mean of the last hidden states, and that of the last token.

The last hidden states are those after the final norm. Each pooled state is scaled to length 1, as models of
embeddings do; `norms` are the lengths before that.
"""

import torch

import reference

# More than Phi's original context, below which transformers uses other rotations.
PROMPT_TOKENS = [17, 33, 80]
TOLERANCE = 1e-4
POOLINGS = {"mean": lambda states: states.mean(dim=0), "last": lambda states: states[-1]}
OTHER = {"mean": "last", "last": "mean"}
ONE_LESS = {"mean": lambda states: states[1:], "last": lambda states: states[:-1]}


@torch.no_grad()
def states(model, tokens):
    """The last hidden states, and those before the final norm: tokens x hidden."""
    before = []

    def keep(_module, _inputs, output):
        before.append((output[0] if isinstance(output, tuple) else output)[0])

    hook = reference.layers(model)[-1].register_forward_hook(keep)
    output = model.base_model(input_ids=torch.tensor([tokens]), use_cache=False)
    hook.remove()
    return output.last_hidden_state[0], before[0]


def scaled(rows):
    """Each row scaled to length 1."""
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1)


def of_prompts(model, tokens):
    """The last hidden states of each prompt, and those before the final norm."""
    return [states(model, tokens[:count]) for count in PROMPT_TOKENS]


def difference(found, right):
    return float((found.double() - right.double()).abs().max())


def pooled(name, prompts):
    return [POOLINGS[name](normed) for normed, _ in prompts]


def mistakes(name, prompts):
    """How far known mistakes change the numbers."""
    pool = POOLINGS[name]
    right = scaled(pooled(name, prompts))
    wrong = {
        "before the final norm": scaled([pool(before) for _, before in prompts]),
        "the other pooling": scaled(pooled(OTHER[name], prompts)),
        "one token less": scaled([pool(ONE_LESS[name](normed)) for normed, _ in prompts]),
        "not scaled": torch.stack(pooled(name, prompts)),
    }
    return {f"{name}: {mistake}": difference(found, right) for mistake, found in wrong.items()}


def table(model, double, tokens):
    """Of each pooling the numbers and norms, of both the noise and the mistakes. `double` is the model in f64."""
    prompts, exact = of_prompts(model, tokens), of_prompts(double, tokens)
    found = {name: torch.stack(pooled(name, prompts)) for name in POOLINGS}
    right = {name: torch.stack(pooled(name, exact)) for name in POOLINGS}
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "numbers": {name: scaled(list(rows)).numpy() for name, rows in found.items()},
        "norms": {name: rows.norm(dim=-1).tolist() for name, rows in found.items()},
        "noise": max(difference(found[name], right[name]) for name in POOLINGS),
        "mistakes": {
            mistake: value
            for name in POOLINGS
            for mistake, value in mistakes(name, prompts).items()
        },
    }
