"""Runs many streams at once, and aborts one in ten: stream_churn.py URL PACKAGES STREAMS SECONDS PID

Whoever stays is to hear what it hears alone. When all are gone, the server PID is to hold
nothing of them: no sequence, no bytes, no descriptor; and its memory is not to have grown once
all streams had started.
"""

import asyncio
import json
import os
import random
import re
import statistics
import sys
import time

url, _, streams, seconds, pid = sys.argv[1:]
host, port = url.removeprefix("http://").split(":")
streams, seconds = int(streams), float(seconds)

LEAVES = 0.1
# Memory is compared only in runs that are long enough for it to settle.
STABLE_SECONDS_MIN = 60
MEMORY_GROWTH_MAX = 1.05
TIMEOUT_SECONDS = 60
rng = random.Random(1)


def request(number):
    subject = "the sea " * (1 + 7 * number)
    return {
        "prompt": f"Say something, number {number}, about {subject}",
        "max_tokens": 16 + 8 * number,
        "temperature": 1.1,
        "seed": number,
        "ignore_eos": True,
        "user": f"user {number % 5}",
    }


REQUESTS = [request(number) for number in range(16)]


async def send(path, body=None):
    """Sends a request and reads the status and headers. The body is still to be read."""
    reader, writer = await asyncio.open_connection(host, port)
    body = b"" if body is None else json.dumps(body).encode()
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert " 200 " in head.splitlines()[0], head + (await reader.read()).decode()
    return reader, writer, "transfer-encoding: chunked" in head


async def whole(path, body=None):
    reader, writer, is_chunked = await send(path, body)
    assert not is_chunked
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def lines(reader):
    """The lines of a chunked body; a line may span several chunks."""
    held = b""
    while size := int(await reader.readline(), 16):
        held += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole_lines, held = held.split(b"\n")
        for line in whole_lines:
            yield line.decode()


class StreamChurn:
    def __init__(self, alone):
        self.expected = alone
        self.left = self.stayed = self.tokens = 0

    async def one(self, until):
        while time.monotonic() < until:
            number = rng.randrange(len(REQUESTS))
            leaves_after = None
            if rng.random() < LEAVES:
                leaves_after = rng.randrange(REQUESTS[number]["max_tokens"] // 2)
            await self.stream(number, leaves_after)

    async def stream(self, number, leaves_after):
        body = {**REQUESTS[number], "stream": True}
        reader, writer, _ = await send("/v1/completions", body)
        text, events, end = "", 0, None
        async for line in lines(reader):
            if events == leaves_after:
                self.left += 1
                writer.transport.abort()
                return
            if not line.startswith("data: "):
                continue
            events += 1
            end = line.removeprefix("data: ")
            if end != "[DONE]":
                text += json.loads(end)["choices"][0]["text"]
        writer.close()
        assert end == "[DONE]", end
        assert text == self.expected[number], (number, text, self.expected[number])
        self.stayed += 1
        self.tokens += REQUESTS[number]["max_tokens"]


def descriptors():
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_mib():
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


async def gauges():
    pattern = re.compile(
        r'^(motet_num_requests_\w+|motet_cache_bytes\{.*kind="(?:reserved|protected)".*\}) (\S+)$',
        re.MULTILINE,
    )
    return {name: float(value) for name, value in pattern.findall(await whole("/metrics"))}


async def gauges_when_idle():
    """The gauges once no request is inside; this may take a moment."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while True:
        left = await gauges()
        assert len(left) >= 5, left
        if not any(left.values()) or time.monotonic() > until:
            return left
        await asyncio.sleep(0.05)


async def watch(samples):
    while True:
        samples.append((resident_mib(), descriptors()))
        await asyncio.sleep(0.5)


async def main():
    alone = []
    for asked in REQUESTS:
        answer = json.loads(await whole("/v1/completions", {**asked, "cache_salt": "alone"}))
        alone.append(answer["choices"][0]["text"])
    await gauges_when_idle()
    descriptors_before = descriptors()

    churn, samples = StreamChurn(alone), []
    watching = asyncio.create_task(watch(samples))
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(streams):
            tasks.create_task(churn.one(until))
    watching.cancel()
    left = await gauges_when_idle()
    closing = time.monotonic() + TIMEOUT_SECONDS
    # The connection that reads the gauges is itself open for a moment.
    while descriptors() > descriptors_before and time.monotonic() < closing:
        await asyncio.sleep(0.05)

    memory = [resident for resident, _ in samples]
    quarter = max(1, len(memory) // 4)
    early = statistics.median(memory[quarter : 2 * quarter] or memory)
    late = statistics.median(memory[-quarter:])
    most = max(count for _, count in samples)
    print(f"complete streams, equal to their reference runs: {churn.stayed}, of {churn.tokens} tokens")
    print(f"aborted streams: {churn.left}")
    print(f"descriptors: {descriptors_before} before, {most} at most, {descriptors()} after")
    print(f"resident MiB: {early:.1f} in the second quarter, {late:.1f} in the last")
    print("held in the engine:", json.dumps(left))
    assert churn.stayed > 0 and churn.left > 0
    assert not any(left.values()), "something is held"
    assert descriptors() <= descriptors_before, "descriptors leak"
    if seconds >= STABLE_SECONDS_MIN:
        assert late <= early * MEMORY_GROWTH_MAX, "memory grows"


asyncio.run(main())
