"""Servers in existing fleets: main.py SERVER PACKAGES [PART]

Each part starts its own processes, on the oracle. The program fails if a part does.
"""

import itertools
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from load import Conversations, Streams  # noqa: E402
from processes import BLOCK_TOKENS, MODEL, Dynamo, Indexer, Server, Smg, VllmRouter, kill_all  # noqa: E402
from store import remote  # noqa: E402


# The oracle's tokens are bytes, and each takes eight bytes of its cache.
FLEET_MIB = 2
# Least cached share of two servers, of that of one.
SHARE_MIN = 0.93
STREAMS, STREAM_TOKENS = 200, 1500
# Longest time from SIGTERM to a server's end.
DRAIN_SECONDS_MAX = 2
# A frontend may send a request on to another worker so many times. By default it also spreads running
# requests by their blocks, which costs cached prefixes.
FRONTEND = ["--migration-limit", "3", "--no-router-track-active-blocks"]


class Fleet:
    """The programs that the parts start."""

    def __init__(self, program, packages, tokenizer):
        self.program, self.packages, self.tokenizer = program, packages, tokenizer

    def servers(self, count, *arguments):
        return [Server(self.program, self.tokenizer, *arguments) for _ in range(count)]

    def dynamo(self, servers):
        return Dynamo(self.packages, servers, *FRONTEND)

    def vllm_router(self, servers):
        return VllmRouter(self.packages, servers, self.tokenizer)

    def smg(self, servers):
        return Smg(self.packages, servers)


def end(*processes):
    for process in processes:
        process.end()


def figure(name, value, what):
    print(f"    {name:<26} {value:8.3f}  {what}", flush=True)


def routing(fleet):
    """Routers that know of prefixes lose little against one server with all the memory."""
    for number, router in enumerate((fleet.dynamo, fleet.vllm_router, fleet.smg)):
        shares = []
        for count in (1, 2):
            servers = fleet.servers(count, "--cache-mib", str(FLEET_MIB // count))
            front = router(servers)
            Conversations().run(front.url)
            hits = sum(server.counted("vllm:prefix_cache_hits_total") for server in servers)
            asked = sum(server.counted("vllm:prefix_cache_queries_total") for server in servers)
            shares.append(hits / asked)
            end(front, *servers)
        one, two = shares
        print(f"    {front.name}: one server {one:.1%}, two of half the memory {two:.1%}")
        if number == 0:
            figure("fleet.reuse_two_vs_one", two / one, "cached share, two workers ÷ one server")
        assert two / one >= SHARE_MIN, f"behind {front.name}, two keep less than {SHARE_MIN:.0%}"


def indexer(fleet):
    """Dynamo's index of two servers says what each of them holds, of each salt."""
    servers = fleet.servers(2, "--kv-events-salts")
    index = followed(fleet, servers)
    prompts = [[(number * 17 + step * step) % 251 for step in range(200)] for number in range(6)]
    whole = len(prompts[0]) // BLOCK_TOKENS * BLOCK_TOKENS
    salts = (None, "ann", "bob")
    for number, prompt in enumerate(prompts):
        # The first is held by both, the others by one each, and each by one salt.
        holders, salt = (1, 2) if number == 0 else (1 + number % 2,), salts[number % 3]
        for worker in holders:
            complete(servers[worker - 1], prompt, salt=salt)
            # Events take a moment.
            index.process.until(lambda: tokens_of(index.query(prompt, salt), worker) == whole)
    answers = 0
    for prompt in prompts:
        for salt in salts:
            answers += agree(index, servers, prompt, salt)
    print(f"    {answers} answers of the index equal the servers' own")
    end(index, *servers)
    late(fleet)


def followed(fleet, servers):
    """An index that gets the events of the servers, and asks for the earlier ones when the first comes."""
    index = Indexer(fleet.packages, servers)
    for worker, server in enumerate(servers, 1):
        news = ([200 + worker, number] * BLOCK_TOKENS for number in itertools.count())

        def is_followed(worker=worker, server=server, news=news):
            prompt = next(news)
            complete(server, prompt)
            time.sleep(0.1)
            return tokens_of(index.query(prompt), worker)

        index.process.until(is_followed)
    return index


def late(fleet):
    """An index that begins after older events were dropped gets a snapshot."""
    arguments = ("--kv-events-replay-mib", "1", "--cache-mib", "1")
    servers = fleet.servers(1, "--kv-events-salts", *arguments)
    prompts = [[(at * 7 + number) % 250 for at in range(2008)] for number in range(300)]
    kept = prompts.pop()
    for number, prompt in enumerate(prompts):
        complete(servers[0], prompt)
        if number % 10 == 0:
            # It stays, and its events are long dropped.
            complete(servers[0], kept)
    index = followed(fleet, servers)
    index.process.until(lambda: tokens_of(index.query(prompts[-1]), 1) == 2000)
    # Those that the server has are asked for first, as it drops some to compute others.
    asked = [kept, *prompts[-20:], prompts[0]]
    assert cached_tokens(servers[0], kept, None) > 2000
    answers = sum(agree(index, servers, prompt, None) for prompt in asked)
    log = index.process.written()
    assert "started_after_requested" in log, log[-2000:]
    print(f"    {answers} answers of a late index, after a snapshot, equal the server's own")
    end(index, *servers)


def agree(index, servers, prompt, salt):
    """Holds the index to what the servers find. Returns the number of answers."""
    answer = index.query(prompt, salt)
    for worker, server in enumerate(servers, 1):
        found = cached_tokens(server, prompt, salt) // BLOCK_TOKENS * BLOCK_TOKENS
        assert tokens_of(answer, worker) == found, f"the server has {found}, the index {answer}"
    return len(servers)


def complete(server, prompt, tokens=1, salt=None):
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "cache_salt": salt}
    request = urllib.request.Request(
        f"{server.http}/v1/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())["usage"]


def cached_tokens(server, prompt, salt):
    return complete(server, prompt, salt=salt)["prompt_tokens_details"]["cached_tokens"]


def tokens_of(answer, worker):
    """The prompt's tokens that a worker holds on its device, by the index."""
    return answer["instances"].get(str(worker), {}).get("gpu", 0)


def undisturbed(fleet):
    """The streams' texts where nobody disturbs them."""
    servers = fleet.servers(1)
    front = fleet.dynamo(servers)
    streams = Streams(STREAMS, STREAM_TOKENS)
    streams.run(front.url)
    end(front, *servers)
    return streams.streams


def compare(streams, expected):
    """The tokens that were lost, doubled or changed."""
    lost = 0
    for stream, whole in zip(streams.streams, expected, strict=True):
        assert whole.is_whole(STREAM_TOKENS), whole
        if not stream.is_whole(STREAM_TOKENS):
            print(f"    a stream ended with {stream.finish}, {stream.tokens} tokens, {stream.error}")
            lost += STREAM_TOKENS - (stream.tokens or 0)
        lost += sum(got != want for got, want in zip(stream.text, whole.text, strict=False))
        lost += abs(len(stream.text) - len(whole.text))
    return lost


def streams_of(server):
    """The streams that a server has, of which there must be some."""
    count = sum(
        server.counted(f"vllm:num_requests_{state}") for state in ("running", "waiting")
    )
    assert count > STREAMS // 10, f"the server has {count:.0f} streams"
    return int(count)


def disturbed(fleet, disturb, what):
    """The processes whose streams have lost no token, though `disturb` has ended some on a server."""
    expected = undisturbed(fleet)
    servers = fleet.servers(2)
    front = fleet.dynamo(servers)
    streams = Streams(STREAMS, STREAM_TOKENS)
    join = streams.start(front.url)
    streams.until_under_way()
    moved = streams_of(servers[0])
    disturb(front, servers[0])
    join()
    lost = compare(streams, expected)
    figure("fleet.lost_tokens", lost, f"of {STREAMS * STREAM_TOKENS}, {what} under {moved} streams")
    assert lost == 0
    return front, servers


def drain(fleet):
    """A server that is told to end hands its streams over, and loses no token."""
    seconds = []
    front, servers = disturbed(
        fleet,
        lambda _front, server: seconds.append(server.drain_seconds()),
        "one of two servers drained",
    )
    figure("fleet.drain_seconds", seconds[0], f"SIGTERM to the end, of {STREAMS} streams on two")
    assert seconds[0] <= DRAIN_SECONDS_MAX
    end(front, servers[1])


def kill(fleet):
    """A worker that is killed loses no token."""
    front, servers = disturbed(
        fleet, lambda front, _server: front.sidecars[0].kill(), "one of two workers killed"
    )
    # The server sees that its streams are gone.
    servers[0].until(lambda: servers[0].counted("vllm:num_requests_running") == 0)
    end(front, *servers)


def grace(fleet):
    """Behind a router that retries only before the first byte, streams finish within the grace."""
    servers = fleet.servers(2, "--grace-seconds", "60")
    front = fleet.vllm_router(servers)
    streams = Streams(60, STREAM_TOKENS)
    join = streams.start(front.url)
    streams.until_under_way()
    servers[0].process.terminate()
    late = Streams(20, 50)
    late.run(front.url)
    join()
    for group in (streams, late):
        for stream in group.streams:
            assert stream.is_whole(group.tokens), stream
    servers[0].process.wait(60)
    print("    60 streams were finished, and 20 later ones were served by the other server")
    end(front, servers[1])


PARTS = {
    "routing": routing,
    "indexer": indexer,
    "drain": drain,
    "kill": kill,
    "grace": grace,
    "remote": remote,
}


def write_tokenizer(folder):
    """The oracle's tokenizer as a folder of Hugging Face's: tokens are bytes, in GPT-2's spelling."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = range(256, 256 + 256 - len(printable))
    alphabet = [chr(spelled) for spelled in [*printable, *moved]]
    plain = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end_token = {"id": 256, "content": "<end>", "special": True, "single_word": False}
    end_token |= {"lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end_token],
        "pre_tokenizer": {"type": "ByteLevel", **plain},
        "decoder": {"type": "ByteLevel", **plain},
        "model": {
            "type": "BPE",
            "vocab": {spelled: token for token, spelled in enumerate(alphabet)},
            "merges": [],
        },
    }
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 257,
        "max_position_embeddings": 8192,
        "eos_token_id": 256,
    }
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "chat_template": template + "assistant: ",
    }
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("config.json", model),
        ("generation_config.json", {"eos_token_id": 256}),
        ("tokenizer_config.json", config),
    ):
        Path(folder, name).write_text(json.dumps(content))


def main():
    program, packages, *only = sys.argv[1:]
    unknown = [name for name in only if name not in PARTS]
    if unknown:
        sys.exit(f"there is no part {unknown[0]!r}; expected one of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(tokenizer)
        fleet = Fleet(program, packages, tokenizer)
        for name, part in PARTS.items():
            if not only or name in only:
                began = time.monotonic()
                print(f"{name}: {part.__doc__}", flush=True)
                try:
                    part(fleet)
                finally:
                    kill_all()
                print(f"{name}: passed, {time.monotonic() - began:.0f} s", flush=True)


main()
