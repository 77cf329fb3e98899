"""A store that servers share, in a redis-server, and what becomes of it."""

import subprocess
import tempfile
import threading
import time
from pathlib import Path

from load import Conversations, run_threads
from processes import MODEL, Process, Server, cached_share, free_port, post

# Long prompts that users share: they take the simulated model this time for each token.
TOKEN_US = 200
PROMPT_TOKENS = 2048
# Least cached share of two servers in turns, of that of one.
TURNS_SHARE_MIN = 0.9
# Requests while the store fails, and how many of them at once.
REQUESTS, AT_ONCE = 48, 8


class Redis(Process):
    """A redis-server of the packages, on a free port."""

    def __init__(self, packages, *arguments):
        self.folder = Path(packages, "bin")
        self.port = free_port()
        command = [self.folder / "redis-server", "--port", str(self.port), "--save", ""]
        super().__init__("redis-server", [*command, "--bind", "127.0.0.1", *arguments])
        self.until(lambda: self.ask("ping") == b"PONG\n")
        self.url = f"redis://127.0.0.1:{self.port}"

    def ask(self, *words):
        command = [self.folder / "redis-cli", "-p", str(self.port), *words]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).stdout

    def keys(self, pattern):
        return self.ask("keys", pattern).split()

    def flip_bytes(self):
        """Changes a byte in the middle of every value."""
        for key in self.keys("*"):
            at = int(self.ask("strlen", key)) // 2
            byte = self.ask("getrange", key, str(at), str(at))[:1]
            self.ask("setrange", key, str(at), b"x" if byte != b"x" else b"y")


class Store:
    """The servers of a fleet with a redis-server, and the fleet's secret."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.folder = tempfile.TemporaryDirectory()
        self.redis = Redis(fleet.packages)

    def secret(self, number):
        path = Path(self.folder.name, f"secret-{number}")
        path.write_text(f"{number:064d}\n")
        return path

    def server(self, *arguments, secret=1):
        remote = ["--remote", self.redis.url, "--remote-secret", str(self.secret(secret))]
        slow = ["--oracle-token-us", str(TOKEN_US)]
        return Server(self.fleet.server, self.fleet.tokenizer, *slow, *remote, *arguments)

    def alone(self, *arguments):
        """A server without the store."""
        slow = ["--oracle-token-us", str(TOKEN_US)]
        return Server(self.fleet.server, self.fleet.tokenizer, *slow, *arguments)

    def until_sent(self, server):
        """Waits until the server has nothing to send: it sends what a request leaves when it ends."""
        last, quiet_since = -1, time.monotonic()
        while time.monotonic() < quiet_since + 0.5:
            time.sleep(0.05)
            sent = server.counted("motet_pager_moves_total{task=\"send\"}")
            if sent != last:
                last, quiet_since = sent, time.monotonic()


def prompt(number, tokens=PROMPT_TOKENS):
    return [(17 * number + step * step + step // 7) % 251 for step in range(tokens)]


def complete(server, tokens):
    """The text, and how many tokens of the prompt were cached."""
    asked = {"model": MODEL, "prompt": tokens, "max_tokens": 8, "temperature": 0}
    answer = post(f"{server.http}/v1/completions", asked)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["text"], cached


def complete_all(server, prompts):
    """The texts of many requests, a few at once."""
    texts = [None] * len(prompts)
    numbers = iter(range(len(prompts)))
    lock = threading.Lock()

    def take():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            texts[number] = complete(server, prompts[number])[0]

    run_threads(take, [()] * AT_ONCE)
    return texts


def found(store):
    """A prompt that one server has computed is loaded by another, and by none of another fleet."""
    servers = [store.server(), store.server()]
    stranger = store.server(secret=2)
    for number in range(4):
        computed, cached = complete(servers[0], prompt(number))
        assert cached == 0, f"{cached} tokens were cached before they were computed"
        store.until_sent(servers[0])
        loaded, cached = complete(servers[1], prompt(number))
        assert cached == PROMPT_TOKENS - 1, f"{cached} tokens came from the store"
        foreign, cached = complete(stranger, prompt(number))
        assert cached == 0, f"another fleet has loaded {cached} tokens"
        assert computed == loaded == foreign, "a text differs"
    print(f"    4 prompts of {PROMPT_TOKENS} tokens were loaded by another server, by no other fleet")
    for server in (*servers, stranger):
        server.end()


def in_turns(store):
    """Two servers that get requests in turns reuse about as much as one."""
    shares = []
    for servers in ([store.alone()], [store.server(), store.server()]):
        Conversations(users=64, at_once=2).run(*(server.http for server in servers))
        shares.append(cached_share(servers))
        for server in servers:
            server.end()
    one, two = shares
    print(f"    fleet.reuse_in_turns       {two / one:8.3f}  one server {one:.1%}, two in turns {two:.1%}")
    assert two / one >= TURNS_SHARE_MIN, f"two servers in turns keep less than {TURNS_SHARE_MIN:.0%}"


def faults(store):
    """A store that fails, hangs, is full or lies costs no request, and changes no text."""
    prompts = [prompt(number % 16, 1024 + 64 * (number % 5)) for number in range(REQUESTS)]
    alone = store.alone()
    expected = complete_all(alone, prompts)
    alone.end()
    cases = {
        "works": lambda redis: None,
        "has flipped bytes": Redis.flip_bytes,
        "pauses": lambda redis: redis.ask("client", "pause", "20000"),
        "is full": lambda redis: redis.ask("config", "set", "maxmemory", "1mb"),
        "is killed": Redis.kill,
    }
    for name, fault in cases.items():
        store.redis.kill()
        store.redis = Redis(store.fleet.packages)
        servers = [store.server("--remote-answer-ms", "500") for _ in range(2)]
        first = complete_all(servers[0], prompts[:16])
        store.until_sent(servers[0])
        fault(store.redis)
        rest = complete_all(servers[1], prompts[16:])
        assert first + rest == expected, f"a store that {name} changes texts"
        asks = servers[1].counted("motet_pager_remote_asks_total")
        assert asks > 0, "the store was not asked"
        fetched = servers[1].counted('motet_pager_moves_total{task="fetch"}')
        assert (fetched > 0) == (name in ("works", "is full")), f"a store that {name} gave {fetched:.0f}"
        if name == "is full":
            failed = servers[1].counted("motet_pager_failures_total{task=\"send\"}")
            assert failed > 0, "nothing was sent to a full store"
        for server in servers:
            server.kill()
        print(f"    a store that {name}: {REQUESTS} requests complete, {asks:.0f} questions")


def remote(fleet):
    """What one server has computed, others load from a store that they share."""
    for part in (found, in_turns, faults):
        store = Store(fleet)
        part(store)
        if store.redis.process.poll() is None:
            store.redis.end()
