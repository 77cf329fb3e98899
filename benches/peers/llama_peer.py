"""llama-server as a side of `cargo xtask bench weights`: one JSON object a line, there and back.

python3 llama_peer.py LLAMA_SERVER_URL

| request | answer |
|---|---|
| `{"do": "prefill", "prompt": [ids]}` | `{"ok": {"seconds": s}}`: the server's own time for the prompt |
| `{"do": "generate", "prompts": [[ids], ..], "tokens": n}` | `{"ok": {"seconds": s}}` |

`generate` computes all prompts first, so that the server has them cached. It then asks for n
tokens of each at the same time, and takes the longest of the server's own times between a
request's first token and its last: time that HTTP and a prompt's last token take does not count.
"""

import json
import sys
import threading
import urllib.request


def complete(url, prompt, tokens, slot, cached):
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": cached,
        "id_slot": slot,
    }
    request = urllib.request.Request(
        url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["timings"]


def prefill(url, request):
    timings = complete(url, request["prompt"], 1, 0, False)
    if timings["prompt_n"] < len(request["prompt"]):
        raise ValueError(f"only {timings['prompt_n']} tokens were computed")
    return timings["prompt_ms"] / 1e3


def generate(url, request):
    prompts, tokens = request["prompts"], request["tokens"]
    for slot, prompt in enumerate(prompts):
        complete(url, prompt, 1, slot, True)
    times = [None] * len(prompts)

    def of(slot):
        timings = complete(url, prompts[slot], tokens, slot, True)
        if timings["predicted_n"] == tokens:
            # The first token comes from the prompt.
            times[slot] = timings["predicted_ms"] / 1e3 * tokens / (tokens - 1)

    threads = [threading.Thread(target=of, args=(slot,)) for slot in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in times:
        raise ValueError(f"a request got fewer than {tokens} tokens")
    return max(times)


def main():
    url = sys.argv[1]
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prefill":
                answer = {"ok": {"seconds": prefill(url, request)}}
            elif request["do"] == "generate":
                answer = {"ok": {"seconds": generate(url, request)}}
            else:
                answer = {"error": f"cannot {request['do']}"}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


main()
