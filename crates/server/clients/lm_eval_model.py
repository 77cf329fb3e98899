"""Writes the model that lm-eval is run on, as a Hugging Face folder: lm_eval_model.py PACKAGES FOLDER

It is the llama of tests/parity, whose weights are a formula, with a tokenizer for text in lower case.
"""

import json
import sys
from pathlib import Path

packages, folder = sys.argv[1], Path(sys.argv[2])
PARITY = Path(__file__).resolve().parents[3] / "tests/parity"
sys.path += [packages, str(PARITY)]

import formula  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

FAMILY = "llama"
# As the configuration has them.
SPECIAL = ["<pad>", "<s>", "</s>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-:;() \n"
MERGED = (
    " t,he,in,er,an, a,on,re, s, w,it,ou, c,at,en, b, m, o,is, f, the,or,es, p,ed,ing, d,st,al,ar,nd, and, of,"
    "le, to,ll, h,ow,as,ic, l, is,ve,om,ch"
)


def merge(text, pieces):
    """The two longest known pieces that make this text."""
    cuts = range(len(text) - 1, 0, -1)
    return next((text[:at], text[at:]) for at in cuts if {text[:at], text[at:]} <= pieces.keys())


def tokenizer(size):
    """Byte-level BPE with so many tokens."""
    spelled = {" ": "Ġ", "\n": "Ċ"}
    pieces = {token: index for index, token in enumerate(SPECIAL)}
    merges = []
    for text in [*LETTERS, *MERGED.split(",")]:
        text = "".join(spelled.get(letter, letter) for letter in text)
        if len(text) > 1:
            merges.append(merge(text, pieces))
        pieces[text] = len(pieces)
    assert len(pieces) == size, len(pieces)
    made = Tokenizer(models.BPE(pieces, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return made


def main():
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((PARITY / FAMILY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = json.loads((PARITY / FAMILY / "expected.json").read_text())["tensors"]
    weights = {}
    for name, words in tensors.items():
        shape, _, checksum = words.split()
        weights[name] = formula.tensor(FAMILY, name, [int(size) for size in shape.split("x")])
        assert formula.checksum(weights[name]) == checksum, name
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


main()
