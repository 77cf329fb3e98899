"""Compares the next token's log probabilities of our server and llama-server.

python3 next_token.py OUR_URL LLAMA_SERVER_URL

Both serve the same file and get the same texts. llama.cpp rounds activations to eight bits
beside quantised weights, so its own error is the larger part of the differences.
"""

import json
import sys
import urllib.request

TOP = 20
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived a clockmaker who",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Die Hauptstadt von Österreich heißt",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Water boils at 100 degrees Celsius at sea level. On a high mountain, it boils at a lower "
    "temperature, because the pressure of the air is lower there. " * 8 + "Therefore",
    "import numpy as np\n\ndef softmax(x):\n    shifted = x - np.max(x)\n    return np.",
    "La receta es sencilla: se pelan las patatas, se cortan en láminas finas y se fríen en",
]


def answer(url, path, body):
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def ours(url, text):
    """Tokens of the prompt, and the most likely next tokens with their log probabilities."""
    body = {"model": "ours", "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": TOP}
    found = answer(url, "/v1/completions", body)
    tops = found["choices"][0]["logprobs"]["top_logprobs"][0]
    return found["usage"]["prompt_tokens"], tops


def theirs(url, text):
    body = {"prompt": text, "n_predict": 1, "temperature": 0, "n_probs": TOP, "cache_prompt": False}
    found = answer(url, "/completion", body)
    tops = found["completion_probabilities"][0]["top_logprobs"]
    return found["tokens_evaluated"], {top["token"]: top["logprob"] for top in tops}


def main():
    print("| text | tokens | first token | in both | largest difference | mean |")
    print("|---|--:|---|--:|--:|--:|")
    wrong = []
    for text in TEXTS:
        (count, mine), (their_count, other) = ours(sys.argv[1], text), theirs(sys.argv[2], text)
        best, other_best = max(mine, key=mine.get), max(other, key=other.get)
        both = [token for token in mine if token in other]
        differences = [abs(mine[token] - other[token]) for token in both]
        first = "equal" if best == other_best else f"{best!r}, {other_best!r}"
        print(
            f"| {text[:32].split(chr(10))[0]} … | {count} | {first} | {len(both)} of {TOP} "
            f"| {max(differences):.3f} | {sum(differences) / len(both):.3f} |",
            flush=True,
        )
        if count != their_count:
            wrong.append(f"{text[:32]!r}: {count} tokens, {their_count} of llama-server")
        # Two tokens may change places where they are about equally likely.
        if other[other_best] - other.get(best, -99) > 0.5:
            wrong.append(f"{text[:32]!r}: {first}")
    if wrong:
        sys.exit("\n".join(wrong))


main()
