"""The speed of a Llama in torch, eager, beside `measure speed`: the same weights, prompts and sizes.

FOLDER [--quick]: prints a record as JSON for each type of numbers. Exits with 77 where torch is missing.
"""

import json
import struct
import sys
import time
from pathlib import Path

PROMPT, CONTEXT, BATCHES = 512, 64, (1, 8, 16)
# With `--quick`, as little as shows that it works.
STEPS, ROUNDS = (8, 1) if "--quick" in sys.argv else (32, 3)


def prompt(sequence, tokens):
    """As `prompt` in benches/src/programs/model/speed.rs."""
    return [300 + (at * 7_919 + sequence * 104_729) % 19_000 for at in range(tokens)]


def weights(torch, file, kind):
    """The tensors of a file of safetensors in f32."""
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        numbers = torch.frombuffer(data, dtype=torch.float32, offset=8 + length + begin, count=(end - begin) // 4)
        tensors[name] = numbers.reshape(entry["shape"]).to(**kind)
    return tensors


class Llama:
    def __init__(self, torch, folder, kind):
        config = json.loads((folder / "config.json").read_text())
        self.torch, self.kind, self.config = torch, kind, config
        self.weights = weights(torch, folder / "model.safetensors", kind)
        size = config["head_dim"]
        self.frequencies = config["rope_theta"] ** (-torch.arange(0, size, 2, device=kind["device"]).float() / size)

    def open(self, batch, tokens):
        shape = (batch, self.config["num_key_value_heads"], tokens, self.config["head_dim"])
        layers = range(self.config["num_hidden_layers"])
        return [[self.torch.zeros(shape, **self.kind) for _ in "kv"] for _ in layers]

    def norm(self, x, name):
        wide = x.float()
        scale = self.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (wide * scale).to(x.dtype) * self.weights[name]

    def rotated(self, x, angles):
        first, second = x.float().chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return self.torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def step(self, tokens, cache, before):
        """The greedy next tokens of a batch, all at the same position."""
        torch, functional, w = self.torch, self.torch.nn.functional, self.weights
        batch, count = tokens.shape
        positions = torch.arange(before, before + count, device=tokens.device).float()
        angles = positions[:, None] * self.frequencies
        x = w["model.embed_tokens.weight"][tokens]
        for layer, (keys, values) in enumerate(cache):
            at = f"model.layers.{layer}."

            def heads(part):
                return functional.linear(y, w[f"{at}self_attn.{part}_proj.weight"]).view(
                    batch, count, -1, self.config["head_dim"]
                ).transpose(1, 2)

            y = self.norm(x, at + "input_layernorm.weight")
            query = self.rotated(heads("q"), angles)
            keys[:, :, before : before + count] = self.rotated(heads("k"), angles)
            values[:, :, before : before + count] = heads("v")
            seen = [whole[:, :, : before + count] for whole in (keys, values)]
            y = functional.scaled_dot_product_attention(query, *seen, is_causal=count > 1, enable_gqa=True)
            y = y.transpose(1, 2).reshape(batch, count, -1)
            x = x + functional.linear(y, w[at + "self_attn.o_proj.weight"])
            y = self.norm(x, at + "post_attention_layernorm.weight")
            gate, up = (functional.linear(y, w[f"{at}mlp.{part}_proj.weight"]) for part in ("gate", "up"))
            x = x + functional.linear(functional.silu(gate) * up, w[at + "mlp.down_proj.weight"])
        head = w["model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"]
        return functional.linear(self.norm(x[:, -1:], "model.norm.weight"), head).argmax(-1)


def seconds(torch, device, work):
    """The best time of several."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def record(torch, folder, device, dtype):
    model = Llama(torch, folder, {"device": device, "dtype": dtype})

    def ids(prompts):
        return torch.tensor(prompts, device=device)

    def prefill():
        return int(model.step(ids([prompt(0, PROMPT)]), model.open(1, PROMPT), 0))

    prefill()
    found = {
        "side": f"torch {torch.__version__} {device} {str(dtype).removeprefix('torch.')}",
        "prefill": PROMPT / seconds(torch, device, prefill),
        "decode": {},
    }
    for batch in BATCHES:
        cache = model.open(batch, CONTEXT + (ROUNDS + 1) * STEPS)
        tokens = model.step(ids([prompt(sequence, CONTEXT) for sequence in range(batch)]), cache, 0)
        before, first = CONTEXT, []

        def run():
            nonlocal tokens, before
            for _ in range(STEPS):
                first.append(tokens[0])
                tokens = model.step(tokens, cache, before)
                before += 1
                # As a server does, which sends each token.
                tokens.tolist()

        run()
        found.setdefault("tokens", [int(token) for token in first[:8]])
        found["decode"][batch] = batch * STEPS / seconds(torch, device, run)
    return found


def main():
    try:
        import torch
    except ImportError as error:
        print(f"no torch: {error}")
        sys.exit(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        for dtype in [torch.bfloat16, torch.float32] if device == "cuda" else [torch.float32]:
            print(json.dumps(record(torch, Path(sys.argv[1]), device, dtype)), flush=True)


main()
