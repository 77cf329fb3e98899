"""Writes the expected tokens of small vocabularies that follow the rules of model families.

    python3 -m pip install transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3
    python3 tests/data/tokenizers/generate.py

The texts are cut by the pre-tokenizers that transformers and tokenizers have for each family. The
vocabulary's merges cross every border between words, so that a missing cut shows. The
SentencePiece vocabulary is trained here, with the options of Gemma or of Llama 2.
"""

import io
import json
import unicodedata
from pathlib import Path

import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

HERE = Path(__file__).parent

TEXTS = [
    "Hello world",
    " Hello  world ",
    "It's we'll I'M THEY'RE don't can'T",
    "o'clock 'tis rock'n'roll",
    "1 12 123 1234 12345",
    "3.14159, 1,000,000 and 0x1F",
    "R2D2 v1.2.3 42nd",
    "٣٤٥ ½ Ⅳ ²",
    "你好，世界！",
    "これはテストです。カタカナ",
    "한국어 문장입니다",
    "mixed 中文 and English 日本",
    "🦙🦙 llama 👍🏽",
    "👩‍👩‍👧 family",
    "e\u0301a\u0300 o\u0308 combining",
    "é à ö composed",
    "हिन्दी में पाठ",
    "ไทย ภาษา",
    "नमस्ते\u0301",
    "a\u0301\u0302\u0303b",
    "tab\tbetween\t\ttabs",
    "\tindent\n\t\tmore",
    "line\nbreak\r\nreturn\rold",
    "para\n\n\ngraph \n\n end",
    "trail \n",
    "   \n   x",
    "spaces     five",
    "def f(x):\n    return x + 1\n",
    "if (a && b) { return; } // done/\n",
    "https://example.org/a/b?c=d#e",
    "path/to/file.rs:12:5",
    "!!! ??? ...",
    "\"quoted\" 'single' `code`",
    "camelCase PascalCase SHOUTING_CASE snake_case",
    "HTTPServer iOS McDonald",
    "ǅ ʰ ª titles and modifiers",
    "ſharp STRASSE ß",
    "ΑΒΓ αβγ Привет МИР",
    "\u00a0nbsp\u2003em space\u3000wide",
    "zero\u200bwidth\ufeffmark",
    "$5.00 €3 £2 +1 -1 =",
    "a_b-c*d/e\\f|g",
    "<b>bold</b> &amp;",
    "\x00\x01\x7f",
    "x\u0300\nnew",
    "'S 'd 'LL",
    "ﬁ ligature Å \u212b",
    "word'\u0301s",
    "  \t \n  mixed white",
    "",
]


def bytes_to_unicode():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


def split(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


# The name in GGUF; how the families' own files cut; whether a whole word wins over merges.
PRE_TOKENIZERS = {
    "llama-bpe": (split(GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"]), True),
    "lfm2": (split(GGUF_PRE_TOKENIZER_SPLITS["lfm2"]), True),
    # Llama 3's pattern for vocabularies whose merges are complete: SmolLM3, OLMo 2, Phi-4, Granite 4.
    "smaug-bpe": (split(GGUF_PRE_TOKENIZER_SPLITS["smaug-bpe"]), False),
    "dbrx": (split(GGUF_PRE_TOKENIZER_SPLITS["dbrx"]), False),
    "qwen2": (split(GGUF_PRE_TOKENIZER_SPLITS["qwen2"]), False),
    "qwen35": (split(GGUF_PRE_TOKENIZER_SPLITS["qwen35"]), False),
    "tekken": (split(GGUF_PRE_TOKENIZER_SPLITS["tekken"]), True),
    # gpt-oss and Phi-4 mini.
    "gpt-4o": (split(GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"]), False),
    # SmolLM2; Granite 3 has the same under another name.
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()]), False),
    "refact": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2()]), False),
    # OLMoE.
    "olmo": (gpt2(), False),
}


def byte_level_vocabulary():
    """A vocabulary of bytes and of merges that know no words."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 900,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TEXTS, trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) for pair in model["merges"]]
    # Words without merges, which only a vocabulary that ignores merges finds whole.
    spelled = bytes_to_unicode()
    for word in [" combining", "中文", "SHOUTING"]:
        word = "".join(spelled[byte] for byte in word.encode())
        if word not in model["vocab"]:
            tokens.append(word)
    return tokens, merges


def byte_level():
    tokens, merges = byte_level_vocabulary()
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    ids = {}
    for name, (pre_tokenizer, ignore_merges) in PRE_TOKENIZERS.items():
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizer
        ids[name] = [tokenizer.encode(text).ids for text in TEXTS]
    # Kinds that differ must differ here, or the tests could not tell them apart.
    kinds = ["llama-bpe", "dbrx", "qwen2", "qwen35", "tekken", "gpt-4o", "smollm", "olmo"]
    for one in kinds:
        for other in kinds:
            assert one == other or ids[one] != ids[other], (one, other)
    nfc = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    nfc.normalizer = normalizers.NFC()
    nfc.pre_tokenizer = PRE_TOKENIZERS["qwen2"][0]
    ids["qwen2 after NFC"] = [nfc.encode(text).ids for text in TEXTS]
    assert ids["qwen2 after NFC"] != ids["qwen2"]
    return {"tokens": tokens, "merges": merges, "ids": ids, "nfc": json.loads(nfc.to_str())["normalizer"]}


SPACES = ["▁" * count for count in range(2, 9)]
LINES = ["\n" * count for count in range(1, 5)]
MARKUP = ["<h1>", "</h1>", "\t"]
# Texts with what SentencePiece treats in its own way.
PIECES = TEXTS + [
    "a" + " " * 2 + "b" + " " * 7 + "c" + " " * 8 + "d" + " " * 9 + "e" + " " * 20 + "f",
    " " * 3,
    "\n" * 6 + " x" + "\n" * 2,
    "<h1>Hello</h1> <h1> world </h1>",
    "▁written ▁▁ out",
    "<0x0A> and <bos> and <start_of_turn>user",
]


def trained(add_dummy_prefix, user_defined, control):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [line for text in TEXTS * 3 for line in text.replace("\x00", "").splitlines() if line.strip()]
        ),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        character_coverage=0.98,
        byte_fallback=True,
        add_dummy_prefix=add_dummy_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=user_defined,
        control_symbols=control,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        unk_piece="<unk>",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(processor, id):
    """The type in GGUF."""
    if processor.is_unknown(id):
        return 2
    if processor.is_control(id):
        return 3
    if processor.is_byte(id):
        return 6
    if processor.is_unused(id):
        return 5
    return 1


def sentence_piece(add_dummy_prefix, user_defined):
    control = ["<start_of_turn>", "<end_of_turn>"]
    processor = trained(add_dummy_prefix, user_defined, control)
    ids = range(processor.get_piece_size())
    tokens = [processor.id_to_piece(id) for id in ids]
    types = [4 if token in user_defined else kind(processor, id) for id, token in enumerate(tokens)]
    scores = [processor.get_score(id) for id in ids]
    # llama.cpp's converter writes the runs of spaces of Gemma as spaces.
    stored = [token.replace("▁", " ") if types[id] == 4 else token for id, token in enumerate(tokens)]
    expected = [processor.encode(text) for text in PIECES]
    return processor, {
        "tokens": stored,
        "scores": scores,
        "types": types,
        "add_space_prefix": add_dummy_prefix,
        "ids": expected,
    }


def as_transformers(processor, vocabulary):
    """The tokenizer that transformers makes of such a vocabulary: GemmaConverter."""
    from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    vocab = {processor.id_to_piece(id): id for id in range(processor.get_piece_size())}
    scores = {token: -id for token, id in vocab.items()}
    tokenizer = GemmaTokenizer(vocab=vocab, merges=generate_merges(vocab, scores))
    backend = tokenizer.backend_tokenizer
    user_defined = [token for token, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind == 4]
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined if token.strip(" ")])
    control = [token for token, kind in zip(vocabulary["tokens"], vocabulary["types"]) if kind == 3]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return [backend.encode(text, add_special_tokens=False).ids for text in PIECES]


def main():
    gemma_processor, gemma = sentence_piece(False, LINES + SPACES + MARKUP)
    gemma["transformers"] = as_transformers(gemma_processor, gemma)
    _, llama = sentence_piece(True, [])
    expected = {
        "versions": {
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "sentencepiece": sentencepiece.__version__,
            "unicode": unicodedata.unidata_version,
        },
        "texts": TEXTS,
        "piece_texts": PIECES,
        "byte_level": byte_level(),
        "gemma": gemma,
        "llama": llama,
    }
    text = json.dumps(expected, ensure_ascii=True, separators=(",", ":"))
    # A line for each list, so that a change can be read.
    text = text.replace(']],"', ']],\n"').replace('],"', '],\n"').replace('],[', '],\n[')
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
