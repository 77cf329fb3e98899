"""Checks that the official client gets the rest of a response from a server that was killed, or ended, and started
again: restart_client.py URL PACKAGES PROGRAM"""

import signal
import socket
import subprocess
import sys
import tempfile
import time

_, packages, program = sys.argv[1:]
sys.path.append(packages)

import httpx2  # noqa: E402
import openai  # noqa: E402

LETTERS = 3000
letters = {"type": "string", "pattern": f"^[a-z]{{{LETTERS}}}$"}
asked = {
    "model": "oracle",
    "input": "Write letters.",
    "temperature": 1,
    "max_output_tokens": 2 * LETTERS,
    "text": {"format": {"type": "json_schema", "name": "letters", "schema": letters}},
    "extra_body": {"seed": 7},
}

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def start(folder):
    words = ["--oracle", "--port", str(port), "--disk", folder, "--grace-seconds", "0"]
    server = subprocess.Popen([program, *words], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while True:
        try:
            client.models.list()
            return server
        except openai.APIConnectionError:
            assert server.poll() is None and time.monotonic() < until, "it does not start"
            time.sleep(0.02)


def end(server, number):
    server.send_signal(number)
    server.wait(30)


def check(number, count):
    with tempfile.TemporaryDirectory() as folder:
        server = start(folder)
        seen = []
        try:
            for event in client.responses.create(background=True, stream=True, **asked):
                seen.append(event)
                if len(seen) == count:
                    end(server, number)
        except (httpx2.HTTPError, openai.APIConnectionError):
            pass
        finally:
            end(server, signal.SIGKILL)
        before = len(seen)
        assert seen[-1].type == "response.output_text.delta", seen[-1]
        server = start(folder)
        try:
            response, after = seen[0].response.id, seen[-1].sequence_number
            seen += client.responses.retrieve(response, stream=True, starting_after=after)
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            parts = [event.delta for event in seen if event.type == "response.output_text.delta"]
            text = "".join(parts)
            assert len(text) == LETTERS + 2 and before < len(seen)
            assert client.responses.retrieve(response).output_text == text
            assert client.responses.create(**asked).output_text == text
        finally:
            end(server, signal.SIGKILL)
    print(f"{number.name} after {before} of {len(seen)} events: ok")


for number in (signal.SIGKILL, signal.SIGTERM):
    for count in (5, 400, 1500):
        check(number, count)
