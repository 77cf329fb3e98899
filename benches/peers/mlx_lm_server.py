"""mlx-lm's own server, `mlx_lm.server`, with the weights and the tokenizer that we run.

The folder of weights has no tokenizer. It is made here, from the GGUF file that the
weights were read from, and put beside them in a folder of its own.

usage: mlx_lm_server.py PACKAGES WEIGHTS GGUF FOLDER [OPTIONS]
    PACKAGES  folder that mlx-lm was installed into
    WEIGHTS   folder with config.json and safetensors in f32
    GGUF      the file with the tokenizer
    FOLDER    folder to put the model together in
    OPTIONS   of mlx_lm.server
"""

import json
import os
import sys
from pathlib import Path

packages, weights, gguf, folder = sys.argv[1:5]
sys.path.insert(0, packages)
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx  # noqa: E402
from mlx_lm import server  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

# Types of tokens, as `tokenizer.ggml.token_type` numbers them.
CONTROL, USER_DEFINED = 3, 4

# Names of `tokenizer.ggml.pre` for GPT-2's words with each digit alone.
DIGITS_ALONE = ("smollm", "starcoder")


def main():
    metadata = mx.load(gguf, return_metadata=True)[1]
    model = Path(folder)
    model.mkdir(parents=True, exist_ok=True)
    for file in Path(weights).iterdir():
        link = model / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    tokenizer, ends = make_tokenizer(metadata)
    tokenizer.save(str(model / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": ends,
        "chat_template": metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
    }
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    sys.argv = ["mlx_lm.server", "--model", str(model), *sys.argv[5:]]
    server.main()


def make_tokenizer(metadata):
    """The tokenizer, and the token that ends a reply."""
    kind, words = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if kind != "gpt2" or words not in DIGITS_ALONE:
        sys.exit(f"mlx_lm_server.py does not know tokenizers of the kind {kind}, {words}")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer, tokens[int(metadata["tokenizer.ggml.eos_token_id"])]


main()
