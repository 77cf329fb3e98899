"""What users do: conversations in turns, and many streams at once."""

import http.client
import json
import queue
import random
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from processes import MODEL

# Longest time in which a stream may send nothing.
SILENT_SECONDS = 120


def words(rng, length):
    return "".join(rng.choice("abcdefghijklmnop ") for _ in range(length))


@dataclass
class Conversations:
    """Users of whom several share a system prompt, and who talk in turns.

    With several salts, users with different ones share no cached state.
    """

    users: int = 256
    system_prompts: int = 16
    system_bytes: int = 3000
    turns: int = 4
    turn_bytes: int = 200
    at_once: int = 16
    salts: int = 1
    usages: list = field(default_factory=list)

    def run(self, *urls):
        """Each turn of all users, in a random order. Several servers get requests in turns."""
        rng = random.Random(7)
        systems = [words(rng, self.system_bytes) for _ in range(self.system_prompts)]
        talks = [[{"role": "system", "content": rng.choice(systems)}] for _ in range(self.users)]
        for _turn in range(self.turns):
            waiting = queue.SimpleQueue()
            for user in rng.sample(range(self.users), self.users):
                talks[user].append({"role": "user", "content": words(rng, self.turn_bytes)})
                waiting.put((user % self.salts, talks[user]))
            failed = queue.SimpleQueue()
            ways = [urls[number % len(urls)] for number in range(self.at_once)]
            run_threads(self.take_turns, [(url, waiting, failed) for url in ways])
            assert failed.empty(), failed.get()
            for talk in talks:
                # The client makes up the reply: the oracle's replies are bytes, and not always text.
                talk.append({"role": "assistant", "content": words(rng, 16)})

    def take_turns(self, url, waiting, failed):
        try:
            self.take_turns_or_fail(url, waiting, failed)
        except (OSError, http.client.HTTPException) as error:
            failed.put(repr(error))

    def take_turns_or_fail(self, url, waiting, failed):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SILENT_SECONDS)
        while not waiting.empty():
            try:
                salt, talk = waiting.get_nowait()
            except queue.Empty:
                break
            body = {"model": MODEL, "messages": talk, "max_tokens": 16}
            if self.salts > 1:
                body["cache_salt"] = f"tenant {salt}"
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            reply = answer.read()
            if answer.status != 200:
                failed.put((answer.status, reply))
                return
            self.usages.append(json.loads(reply)["usage"])

    def cached_share(self):
        """The cached share of all prompts, by the answers."""
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in self.usages)
        return cached / sum(usage["prompt_tokens"] for usage in self.usages)


@dataclass
class Stream:
    """The answer to one streamed request."""

    text: str = ""
    finish: str | None = None
    tokens: int | None = None
    error: str | None = None

    def is_whole(self, tokens):
        return (self.finish, self.tokens, self.error) == ("length", tokens, None)


class Streams:
    """Streams at once, greedy and seeded by turns, each of so many tokens."""

    def __init__(self, count, tokens):
        self.count, self.tokens = count, tokens
        self.streams = [Stream() for _ in range(count)]

    def run(self, url):
        return run_threads(self.read, [(url, number) for number in range(self.count)])

    def start(self, url):
        """Starts them all. Returns a function that waits for their ends."""
        return start_threads(self.read, [(url, number) for number in range(self.count)])

    def until_under_way(self):
        """Waits until the streams have sent a sixth of their text, and none has ended."""
        while sum(len(stream.text) for stream in self.streams) < self.count * self.tokens // 6:
            failed = [stream for stream in self.streams if stream.error]
            assert not failed, failed[0]
            time.sleep(0.05)
        assert not any(stream.finish for stream in self.streams), "they are too short"

    def body(self, number):
        prompt = [(7 * number + step * step) % 251 for step in range(100)]
        sampling = {"temperature": 0}
        if number % 2:
            sampling = {"temperature": 0.9, "seed": number}
        return {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }

    def read(self, url, number):
        stream = self.streams[number]
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SILENT_SECONDS)
        headers = {"Content-Type": "application/json"}
        try:
            body = json.dumps(self.body(number))
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                stream.error = f"{answer.status}: {answer.read()[:500]}"
                return
            for line in answer:
                if line.startswith(b"data: {"):
                    self.add(stream, json.loads(line[len(b"data: ") :]))
                elif line.startswith((b"event: error", b"data: error")):
                    stream.error = line.decode()
        except (OSError, http.client.HTTPException) as error:
            stream.error = repr(error)

    def add(self, stream, event):
        if "error" in event:
            stream.error = json.dumps(event)
        if usage := event.get("usage"):
            stream.tokens = usage["completion_tokens"]
        for choice in event.get("choices", []):
            stream.text += choice.get("text") or ""
            stream.finish = choice.get("finish_reason") or stream.finish


def start_threads(function, arguments):
    threads = [threading.Thread(target=function, args=one, daemon=True) for one in arguments]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join()

    return join


def run_threads(function, arguments):
    start_threads(function, arguments)()
