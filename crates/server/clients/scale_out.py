"""Measures the cache hit rate of a fleet of servers: scale_out.py SERVER [PACKAGES]

Many users, of whom several share a system prompt, talk in turns to one server with all the
memory, and to two with half of it each behind sglang-router. Beside that a subscriber of
vLLM's kind follows what the two have cached. Fails unless the router that knows of prefixes
finds within five points of what the one server finds.
"""

import http.client
import json
import queue
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request

server_program, *packages = sys.argv[1:]
sys.path.extend(packages)

import msgspec  # noqa: E402
import zmq  # noqa: E402

SYSTEM_PROMPTS, SYSTEM_BYTES = 16, 3000
USERS, TURNS, TURN_BYTES = 512, 4, 200
AT_ONCE = 16
# The oracle's tokens are bytes, and each takes eight bytes of its cache.
FLEET_MIB = 2
BLOCK_TOKENS = 16
POINTS_MAX = 5
RUN_ROUTER = """
import json, runpy, sys
sys.path.extend(json.loads(sys.argv.pop(1)))
runpy.run_module("sglang_router.launch_router", run_name="__main__", alter_sys=True)
"""


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Follower:
    """The state of a server's cache, as its events describe it."""

    def __init__(self, address, replay):
        self.blocks, self.batches, self.gaps = set(), 0, 0
        self.decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
        context = zmq.Context.instance()
        self.replay = context.socket(zmq.DEALER)
        self.replay.connect(replay)
        self.subscriber = context.socket(zmq.SUB)
        self.subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        self.subscriber.connect(address)

    def follow(self):
        """Applies all events received so far, and requests a replay of missed batches."""
        while self.subscriber.poll(500):
            _topic, number, payload = self.subscriber.recv_multipart()
            number = int.from_bytes(number, "big")
            if number > self.batches:
                self.gaps += 1
                self.catch_up()
            if number == self.batches:
                self.apply(payload)

    def catch_up(self):
        self.replay.send_multipart((b"", self.batches.to_bytes(8, "big")))
        while True:
            assert self.replay.poll(10_000), "no batch is replayed"
            _empty, number, payload = self.replay.recv_multipart()
            if not payload:
                return
            assert int.from_bytes(number, "big") == self.batches, "batches are out of order"
            self.apply(payload)

    def apply(self, payload):
        self.batches += 1
        for event in self.decoder.decode(payload).events:
            match event:
                case BlockStored(block_hashes=hashes, token_ids=tokens, block_size=size):
                    parent = event.parent_block_hash
                    assert parent is None or parent in self.blocks, "the parent block is unknown"
                    assert len(tokens) == len(hashes) * size, "blocks must be full"
                    self.blocks.update(hashes)
                case BlockRemoved(block_hashes=hashes):
                    assert self.blocks.issuperset(hashes), "a removed block was unknown"
                    self.blocks.difference_update(hashes)
                case AllBlocksCleared():
                    self.blocks.clear()


class Server:
    def __init__(self, mib):
        arguments = ["--oracle", "--port", "0", "--cache-mib", str(mib)]
        arguments += ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-block-size"]
        arguments += [str(BLOCK_TOKENS), "--kv-events-replay", "tcp://127.0.0.1:0"]
        self.process = subprocess.Popen([server_program, *arguments], stderr=subprocess.PIPE)
        reply = {}
        while "address" not in reply:
            line = self.process.stderr.readline()
            assert line, "the server ended before it served"
            reply.update(json.loads(line))
        # Keep reading, or the server would block once the pipe is full.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.address = reply["address"]
        self.follower = Follower(reply["kv_events"], reply["kv_events_replay"])

    def held(self):
        """The share of its prompt tokens that it found in its cache, by its own metrics."""
        with urllib.request.urlopen(f"http://{self.address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        hits, queries = (
            next(float(line.split()[-1]) for line in lines if line.startswith(name))
            for name in names
        )
        return hits / max(queries, 1)

    def end(self):
        self.process.terminate()
        self.process.wait()


class Router:
    def __init__(self, policy, servers):
        with socket.socket() as free, socket.socket() as for_metrics:
            free.bind(("127.0.0.1", 0))
            for_metrics.bind(("127.0.0.1", 0))
            port, metrics_port = free.getsockname()[1], for_metrics.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy]
        arguments += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        arguments += ["--log-level", "error", "--worker-urls"]
        arguments += [f"http://{server.address}" for server in servers]
        python = [sys.executable, "-I", "-S", "-B", "-c", RUN_ROUTER, json.dumps(packages)]
        self.process = subprocess.Popen([*python, *arguments])
        until = time.monotonic() + 60
        while not self.is_ready():
            assert time.monotonic() < until, "the router does not serve"
            time.sleep(0.2)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/readiness") as answer:
                return answer.status == 200
        except OSError:
            return False

    def end(self):
        self.process.terminate()
        self.process.wait()


def words(rng, length):
    return "".join(rng.choice("abcdefghijklmnop ") for _ in range(length))


def load(address):
    """Runs the conversations of all users, each turn in a random order. Returns the hit rate."""
    rng = random.Random(7)
    systems = [words(rng, SYSTEM_BYTES) for _ in range(SYSTEM_PROMPTS)]
    talks = [[{"role": "system", "content": rng.choice(systems)}] for _ in range(USERS)]
    tokens, cached, lock = 0, 0, threading.Lock()

    def take_turns(waiting):
        nonlocal tokens, cached
        connection = http.client.HTTPConnection(address)
        while not waiting.empty():
            try:
                talk = waiting.get_nowait()
            except queue.Empty:
                break
            body = {"model": "oracle", "messages": talk, "max_tokens": 16}
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            reply = json.loads(answer.read())
            assert answer.status == 200, reply
            with lock:
                tokens += reply["usage"]["prompt_tokens"]
                cached += reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    for _turn in range(TURNS):
        for talk in talks:
            talk.append({"role": "user", "content": words(rng, TURN_BYTES)})
        waiting = queue.SimpleQueue()
        for talk in rng.sample(talks, len(talks)):
            waiting.put(talk)
        threads = [threading.Thread(target=take_turns, args=(waiting,)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for talk in talks:
            # The client makes up the reply: the oracle's replies are bytes, and not always text.
            talk.append({"role": "assistant", "content": words(rng, 16)})
    return cached / tokens


def fleet(policy):
    """The hit rate of two servers with half the memory each behind a router."""
    servers = [Server(FLEET_MIB // 2) for _ in range(2)]
    router = Router(policy, servers)
    rate = load(router.address)
    for number, server in enumerate(servers):
        server.follower.follow()
        seen = server.follower
        assert seen.blocks, "a server publishes its cached blocks"
        print(
            f"    server {number}: found {server.held():.1%}; {seen.batches} batches of events,"
            f" {seen.gaps} gaps closed, {len(seen.blocks)} blocks cached"
        )
    for one in [router, *servers]:
        one.end()
    return rate


def alone():
    """The hit rate of one server with all the memory."""
    server = Server(FLEET_MIB)
    rate = load(server.address)
    server.end()
    return rate


print(f"{USERS} users, {SYSTEM_PROMPTS} system prompts, {TURNS} turns, {AT_ONCE} at once")
one = alone()
print(f"one server, {FLEET_MIB} MiB: {one:.1%} of prompt tokens were cached", flush=True)
spread = fleet("round_robin")
print(f"two of {FLEET_MIB // 2} MiB, round robin: {spread:.1%}", flush=True)
aware = fleet("cache_aware")
print(f"two of {FLEET_MIB // 2} MiB, by prefix: {aware:.1%}", flush=True)
points = 100 * (one - aware)
print(f"that is {points:+.1f} points from the one server; at most {POINTS_MAX} are to be lost")
sys.exit(points > POINTS_MAX)
