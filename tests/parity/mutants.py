"""Known mistakes, each made on purpose in a model of transformers.

A mutant is a function of a `Case` that returns the wrong logits. A fixture is fit when every mutant's logits
lie far from the right ones.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from reference import cached, from_config, module_of, open_folder, patched, uncached


@dataclass
class Case:
    folder: object
    config: dict
    tokens: list

    def model(self):
        return open_folder(self.folder, self.config)

    def with_config(self, change):
        """A model of a changed configuration with the same weights."""
        changed = deepcopy(self.config)
        change(changed.get("text_config", changed))
        model = from_config(changed)
        state = self.model().state_dict()
        expected = model.state_dict()
        model.load_state_dict({name: state.get(name, value) for name, value in expected.items()})
        return model


def field(**fields):
    """Fields of the configuration changed; a name with two underscores reaches into a nested object."""

    def change(config):
        for name, value in fields.items():
            at, *rest = name.split("__")
            if rest:
                config[at][rest[0]] = value
            else:
                config[at] = value

    return lambda case: uncached(case.with_config(change), case.tokens)


def without(name):
    """A field missing from the configuration."""
    return lambda case: uncached(case.with_config(lambda config: config.pop(name)), case.tokens)


def weights(suffix, change):
    """Tensors changed whose names end like this."""

    def run(case):
        model, found = case.model(), 0
        with torch.no_grad():
            for name, value in model.named_parameters():
                if name.endswith(suffix):
                    value.copy_(change(value))
                    found += 1
        assert found, f"no tensor ends with {suffix}"
        return uncached(model, case.tokens)

    return run


def zero(suffix):
    return weights(suffix, torch.zeros_like)


def modules(kind, change):
    """Modules changed whose class names end like this."""

    def run(case):
        model = case.model()
        names = [(type(module).__name__, module) for module in model.modules()]
        tower = ("Vision", "Siglip")
        found = [
            module
            for name, module in names
            if name.endswith(kind) and not any(part in name for part in tower)
        ]
        assert found, f"no module ends with {kind}"
        for module in found:
            change(module)
        return uncached(model, case.tokens)

    return run


def attribute(kind, name, change):
    """An attribute changed of all modules whose class names end like this."""
    return modules(kind, lambda module: setattr(module, name, change(getattr(module, name))))


def function(name, wrap):
    """A function of the modelling module replaced by `wrap(the right one)`."""

    def run(case):
        model = case.model()
        owner = module_of(model)
        with patched(owner, **{name: wrap(getattr(owner, name))}):
            return uncached(model, case.tokens)

    return run


# Attention and rotation


def adjacent_pairs(right):
    """Neighbouring numbers are turned together, not those half a head apart."""

    def wrong(q, k, cos, sin, *rest, **named):
        turned = cos.shape[-1] if cos.shape[-1] * 2 != q.shape[-1] else q.shape[-1]
        order = torch.cat(
            [
                torch.arange(0, turned, 2),
                torch.arange(1, turned, 2),
                torch.arange(turned, q.shape[-1]),
            ]
        )
        return right(q[..., order], k[..., order], cos, sin, *rest, **named)

    return wrong


def tiled_heads(_right):
    """Query head i reads key head i modulo the number of key heads."""
    return lambda states, count: states.repeat(1, count, 1, 1)


ADJACENT_PAIRS = function("apply_rotary_pos_emb", adjacent_pairs)
TILED_KEY_HEADS = function("repeat_kv", tiled_heads)


def norm_after_rotation(query_norm, key_norm):
    """The norms of queries and keys follow the rotation."""

    def run(case):
        model = case.model()
        attentions = [module for module in model.modules() if hasattr(module, query_norm)]
        norms = [(getattr(module, query_norm), getattr(module, key_norm)) for module in attentions]
        for module in attentions:
            setattr(module, query_norm, torch.nn.Identity())
            setattr(module, key_norm, torch.nn.Identity())
        owner, calls = module_of(model), iter(norms)

        def after(right):
            def wrong(q, k, *rest, **named):
                q, k = right(q, k, *rest, **named)
                query, key = next(calls)
                return query(q), key(k)

            return wrong

        with patched(owner, apply_rotary_pos_emb=after(owner.apply_rotary_pos_emb)):
            return uncached(model, case.tokens)

    return run


def no_norm(*names):
    """Norms left out."""
    return modules(
        "Attention", lambda module: [setattr(module, name, torch.nn.Identity()) for name in names]
    )


def norm_per_head(module):
    """The norm over a whole row of queries and keys is taken per head."""
    for name in ("q_norm", "k_norm"):
        norm = getattr(module, name)

        def forward(x, norm=norm, size=module.head_dim):
            heads = x.float().unflatten(-1, (-1, size))
            eps = norm.variance_epsilon
            return (heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + eps)).flatten(
                -2
            ) * norm.weight

        norm.forward = forward


def extra_bias(projection):
    """A projection with a bias that the family does not have."""

    def change(module):
        layer = getattr(module, projection)
        layer.bias = torch.nn.Parameter(
            torch.linspace(-0.5, 0.5, layer.out_features), requires_grad=False
        )

    return modules("Attention", change)


def common(theta=None, eps="rms_norm_eps", wrong_eps=1e-6, adjacent=True):
    """The mistakes that every family with attention can suffer."""
    found = {
        "query heads read tiled key heads": TILED_KEY_HEADS,
        "eps of another model": field(**{eps: wrong_eps}),
    }
    if adjacent:
        found["rotation of adjacent pairs"] = ADJACENT_PAIRS
    if theta is not None:
        found["theta of another model"] = field(rope_theta=theta)
    return found


def window(size, name="sliding_window"):
    return {
        "window one shorter": field(**{name: size - 1}),
        "window one longer": field(**{name: size + 1}),
        "no window": field(**{name: 4096}),
    }


# Norms and MLPs


def without_one(value):
    return value - 1.0


def with_one(value):
    return value + 1.0


def swapped_halves(value):
    first, second = value.chunk(2, dim=0)
    return torch.cat([second, first])


# Experts


def router(change):
    """`change(logits, chosen count)` gives the shares and the indices of the experts."""

    def patch(module):
        def forward(states):
            states = states.reshape(-1, states.shape[-1])
            logits = F.linear(states, module.weight, getattr(module, "bias", None))
            shares, indices = change(logits, module.top_k)
            return logits, shares, indices

        module.forward = forward

    return modules("TopKRouter", patch)


def softmax_first(logits, count):
    shares, indices = logits.softmax(-1).topk(count, -1)
    return shares, indices


def softmax_first_divided(logits, count):
    shares, indices = softmax_first(logits, count)
    return shares / shares.sum(-1, keepdim=True), indices


def sigmoid_first(logits, count):
    shares, indices = logits.sigmoid().topk(count, -1)
    return shares / shares.sum(-1, keepdim=True), indices


def one_expert_fewer(logits, count):
    shares, indices = softmax_first_divided(logits, count - 1)
    return F.pad(shares, (0, 1)), F.pad(indices, (0, 1))


# Recurrent layers


def carried(between):
    """The sequence in chunks, with the cache spoiled between them."""
    return lambda case: cached(case.model(), case.tokens, between=between)


def lose(*names):
    """Recurrent state of the cache set to zero."""

    def between(cache):
        for layer in cache.layers:
            for name in names:
                states = getattr(layer, name, None)
                values = states.values() if isinstance(states, dict) else [states]
                for value in values:
                    if isinstance(value, torch.Tensor):
                        value.zero_()

    return between


def in_context(name, replacement):
    """A function of the modelling module replaced outright."""
    return function(name, lambda _right: replacement)


def l2norm_of_mean(x, dim=-1, eps=1e-6):
    return x * torch.rsqrt((x * x).sum(dim=dim, keepdim=True) + eps * x.shape[dim])


def l2norm_of_maximum(x, dim=-1, eps=1e-6):
    return x / (x * x).sum(dim=dim, keepdim=True).sqrt().clamp_min(eps)


def tiled_value_heads(right):
    """Key head j serves value heads j, j + keys ..., not the r that follow each other."""

    def wrong(query, key, value, *rest, **named):
        count = value.shape[2] // key.shape[2]
        return right(
            query.repeat(1, 1, count, 1), key.repeat(1, 1, count, 1), value, *rest, **named
        )

    return wrong


def delta_rule(change):
    return function("torch_chunk_gated_delta_rule", change)


def with_arguments(**changes):
    """Arguments by name changed on their way into a function."""

    def wrap(right):
        def wrong(*positional, **named):
            for name, change in changes.items():
                named[name] = change(named[name])
            return right(*positional, **named)

        return wrong

    return wrap


def projected(kind, name, change):
    """A projection's result changed: `change(module of the kind, result)`."""

    def patch(module):
        layer = getattr(module, name)
        right = layer.forward
        layer.forward = lambda *positional: change(module, right(*positional))

    return modules(kind, patch)
