"""Servers and workers in existing fleets.

Each part starts its own processes, on the oracle but for the last. The program fails if a part does.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from load import Conversations, Streams  # noqa: E402
from processes import (  # noqa: E402
    BLOCK_TOKENS,
    MODEL,
    Dynamo,
    Indexer,
    Server,
    Sidecar,
    Smg,
    VllmRouter,
    Worker,
    cached_share,
    kill_all,
    post,
)
from store import remote  # noqa: E402

# The oracle's tokens are bytes, and each takes eight bytes of its cache.
FLEET_MIB = 2
# Least cached share of two servers, of that of one.
SHARE_MIN = 0.93
STREAMS, STREAM_TOKENS = 200, 1500
# Nothing is between a worker in process and its frontend: it is faster, and ends within a second.
WORKER_TOKENS = 6000
# Longest time from SIGTERM to a server's end.
DRAIN_SECONDS_MAX = 2
# A frontend may send a request on to another worker so many times. By default it also spreads running
# requests by their blocks, which costs cached prefixes.
FRONTEND = ["--migration-limit", "3", "--no-router-track-active-blocks"]


class Fleet:
    """The programs that the parts start."""

    def __init__(self, programs, tokenizer):
        self.server, self.worker, self.model = programs.server, programs.worker, programs.model
        self.packages, self.tokenizer = programs.packages, tokenizer

    def servers(self, count, *arguments):
        return [Server(self.server, self.tokenizer, *arguments) for _ in range(count)]

    def dynamo(self, servers):
        starts = [partial(Sidecar, self.packages, server) for server in servers]
        return Dynamo(self.packages, starts, *FRONTEND)

    def in_process(self, *each):
        """Dynamo with a worker in process for each of these arguments."""

        def start(arguments, environment):
            arguments = ["--oracle", *arguments]
            return Worker(self.worker, self.tokenizer, environment, *arguments)

        starts = [partial(start, arguments) for arguments in each]
        return Dynamo(self.packages, starts, *FRONTEND)

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
            shares.append(cached_share(servers))
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
    tiers(fleet)


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


def tiers(fleet):
    """The index knows which prompts a server has in host memory, after its device has evicted them."""
    prompts = [[(at * 7 + number) % 250 for at in range(2008)] for number in range(250)]
    # The blocks of copies have a sixteenth of host memory, and each takes a KiB. Computing takes longer
    # than loading.
    arguments = ["--cache-mib", "1", "--host-mib", "1024", "--oracle-token-us", "20"]
    servers = fleet.servers(1, "--kv-events-salts", "--kv-events-tiers", *arguments)
    index = followed(fleet, servers)
    for prompt in prompts:
        complete(servers[0], prompt)
    index.process.until(lambda: tokens_of(index.query(prompts[-1]), 1) == 2000)
    found = {"gpu": 0, "cpu": 0}
    for prompt in prompts[::5]:
        answer = index.query(prompt)["instances"]["1"]
        # The number of host memory has that of the device.
        found["gpu"] += answer["gpu"]
        found["cpu"] += answer["cpu"] - answer["gpu"]
        cached = cached_tokens(servers[0], prompt, None) // BLOCK_TOKENS * BLOCK_TOKENS
        assert answer["cpu"] == cached, f"the server has {cached}, the index {answer}"
    assert min(found.values()) > 0, found
    print(f"    of {len(prompts[::5])} prompts the index knows, as the server: {found}")
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
    return post(f"{server.http}/v1/completions", asked)["usage"]


def cached_tokens(server, prompt, salt):
    return complete(server, prompt, salt=salt)["prompt_tokens_details"]["cached_tokens"]


def tokens_of(answer, worker):
    """The prompt's tokens that a worker holds on its device, by the index."""
    return answer["instances"].get(str(worker), {}).get("gpu", 0)


def compare(streams, expected):
    """The tokens that were lost, doubled or changed."""
    lost = 0
    for stream, whole in zip(streams.streams, expected.streams, strict=True):
        assert whole.is_whole(expected.tokens), whole
        if not stream.is_whole(streams.tokens):
            print(f"    a stream ended with {stream.finish}, {stream.tokens} tokens, {stream.error}")
            lost += streams.tokens - (stream.tokens or 0)
        lost += sum(got != want for got, want in zip(stream.text, whole.text, strict=False))
        lost += abs(len(stream.text) - len(whole.text))
    return lost


def disturbed(start, disturb, what, streams):
    """The processes whose streams have lost no token, though `disturb` has ended some of them.

    `start` starts so many servers or workers behind Dynamo, and returns Dynamo and them.
    """
    front, ends = start(1)
    expected = Streams(*streams)
    expected.run(front.url)
    end(front, *ends)
    front, ends = start(2)
    streams = Streams(*streams)
    join = streams.start(front.url)
    streams.until_under_way()
    moved = int(ends[0].streams())
    assert moved > streams.count // 10, f"{ends[0].name} has {moved} streams"
    disturb(front, ends[0])
    join()
    lost = compare(streams, expected)
    tokens = streams.count * streams.tokens
    continued = int(front.continued())
    what = f"of {tokens}, {what} under {moved} streams, {continued} went on"
    figure("fleet.lost_tokens", lost, what)
    assert lost == 0
    assert continued > streams.count // 10, "few streams were still running"
    return front, ends


def start_servers(fleet, count):
    servers = fleet.servers(count)
    return fleet.dynamo(servers), servers


def start_workers(fleet, count):
    front = fleet.in_process(*[()] * count)
    return front, front.workers


def drained(start, name, tokens):
    """Ends one of two in time, which hands its streams over."""
    seconds = []
    front, ends = disturbed(
        start,
        lambda _front, first: seconds.append(first.drain_seconds()),
        f"one of two {name} drained",
        (STREAMS, tokens),
    )
    figure("fleet.drain_seconds", seconds[0], f"SIGTERM to the end, of {STREAMS} streams on two")
    assert seconds[0] <= DRAIN_SECONDS_MAX
    return front, ends


def drain(fleet):
    """A server that is told to end hands its streams over, and loses no token."""
    front, servers = drained(partial(start_servers, fleet), "servers", STREAM_TOKENS)
    end(front, servers[1])


def kill(fleet):
    """A worker that is killed loses no token."""
    front, servers = disturbed(
        partial(start_servers, fleet),
        lambda front, _server: front.workers[0].kill(),
        "one of two sidecars killed",
        (STREAMS, STREAM_TOKENS),
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


def worker_routing(fleet):
    """Workers in process, of whose caches the router knows, lose little; nor do tenants with a salt."""
    for salts in (1, 4):
        shares = []
        for count in (1, 2):
            front = fleet.in_process(*[("--cache-mib", str(FLEET_MIB // count))] * count)
            # As many prompts in all, so that as much is to be cached.
            talks = Conversations(salts=salts, system_prompts=16 // salts)
            talks.run(front.url)
            shares.append(talks.cached_share())
            end(front)
        one, two = shares
        print(f"    {salts} salts: one worker {one:.1%}, two of half the memory {two:.1%}")
        figure("fleet.reuse_two_vs_one", two / one, f"cached share, two in process ÷ one, {salts} salts")
        assert two / one >= SHARE_MIN, f"two keep less than {SHARE_MIN:.0%}"


def worker_drain(fleet):
    """A worker in process that is told to end hands its streams over, and loses no token."""
    front, _ = drained(partial(start_workers, fleet), "workers in process", WORKER_TOKENS)
    end(front)


def worker_kill(fleet):
    """A worker in process that is killed loses no token."""
    front, _ = disturbed(
        partial(start_workers, fleet),
        lambda _front, worker: worker.kill(),
        "one of two workers in process killed",
        (STREAMS, WORKER_TOKENS),
    )
    end(front)


def worker_full(fleet):
    """A request that a full worker rejects is taken by another."""
    front = fleet.in_process(("--sequences-max", "1", "--queue-max", "1"), ())
    streams = Streams(60, 200)
    streams.run(front.url)
    for stream in streams.streams:
        assert stream.is_whole(200), stream
    retried = front.continued()
    assert retried > 0, "no request was rejected"
    print(f"    {retried:.0f} rejected requests were taken by the other worker")
    end(front)


def worker_model(fleet):
    """A worker in process with a real model, in the deterministic mode, that is killed."""

    def start(environment):
        arguments = ["--model", fleet.model, "--deterministic", "--cache-mib", "512"]
        return Worker(fleet.worker, tokenizer, environment, *arguments)

    def start_all(count):
        front = Dynamo(fleet.packages, [start] * count, *FRONTEND)
        return front, front.workers

    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(tokenizer, model_spellings(), 2)
        front, _ = disturbed(
            start_all,
            lambda _front, worker: worker.kill(),
            "one of two workers with SmolLM2 killed",
            (16, 60),
        )
    end(front)


PARTS = {
    "routing": routing,
    "indexer": indexer,
    "drain": drain,
    "kill": kill,
    "grace": grace,
    "remote": remote,
    "worker-routing": worker_routing,
    "worker-drain": worker_drain,
    "worker-kill": worker_kill,
    "worker-full": worker_full,
    "worker-model": worker_model,
}


def oracle_spellings():
    """The oracle's tokens are bytes, in GPT-2's spelling."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = range(256, 256 + 256 - len(printable))
    return [chr(spelled) for spelled in [*printable, *moved]]


def model_spellings(tokens=49152):
    """Four letters for each token of SmolLM2, so that equal texts are equal tokens."""
    letters = "abcdefghijklmnop"
    return [
        "".join(letters[token >> shift & 15] for shift in (12, 8, 4, 0)) for token in range(tokens)
    ]


def write_tokenizer(folder, spellings, end):
    """A tokenizer as a folder of Hugging Face's. Its last token may have no spelling, and be the end."""
    plain = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end_token = {"id": end, "content": "<end>", "special": True, "single_word": False}
    end_token |= {"lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end_token] if end == len(spellings) else [],
        "pre_tokenizer": {"type": "ByteLevel", **plain},
        "decoder": {"type": "ByteLevel", **plain},
        "model": {
            "type": "BPE",
            "vocab": {spelled: token for token, spelled in enumerate(spellings)},
            "merges": [],
        },
    }
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": max(len(spellings), end + 1),
        "max_position_embeddings": 8192,
        "eos_token_id": end,
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
        ("generation_config.json", {"eos_token_id": end}),
        ("tokenizer_config.json", config),
    ):
        Path(folder, name).write_text(json.dumps(content))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--packages", required=True, help="folder of the Python packages")
    arguments.add_argument("--server", help="motet-server")
    arguments.add_argument("--worker", help="dynamo-worker")
    arguments.add_argument("--model", help="SmolLM2-135M-Instruct")
    arguments.add_argument("parts", nargs="+", choices=PARTS)
    programs = arguments.parse_args()
    with tempfile.TemporaryDirectory() as tokenizer:
        write_tokenizer(tokenizer, oracle_spellings(), 256)
        fleet = Fleet(programs, tokenizer)
        for name in programs.parts:
            began = time.monotonic()
            part = PARTS[name]
            print(f"{name}: {part.__doc__}", flush=True)
            try:
                part(fleet)
            finally:
                kill_all()
            print(f"{name}: passed, {time.monotonic() - began:.0f} s", flush=True)


main()
