"""The processes of a fleet: servers, and the routers of others in front of them."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BLOCK_TOKENS = 16
# Longest time for a process to serve.
START_SECONDS = 90
MODEL = "oracle"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def free_port_below(below):
    """The system itself chooses high ones."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            port = random.randrange(1 << 14, below)
            free.bind(("127.0.0.1", port))
            return port


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def post(url, fields):
    request = urllib.request.Request(
        url, json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def cached_share(servers):
    """The part of all prompt tokens that these servers have found in their caches."""
    hits = sum(server.counted("vllm:prefix_cache_hits_total") for server in servers)
    return hits / sum(server.counted("vllm:prefix_cache_queries_total") for server in servers)


def counted(url, name):
    """The sum of a metric's series."""
    lines = get(url).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


class Process:
    """A program that runs until this is ended, with a log that is shown if it does not serve."""

    running = []

    def __init__(self, name, command, environment=None):
        self.name = name
        self.running.append(self)
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )

    def until(self, serves):
        """Waits until `serves` returns something true, and returns it."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if found := serves():
                    return found
            except (OSError, ValueError):
                pass  # It does not listen yet, or its answer is not complete.
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.name} does not serve:\n{self.written()[-4000:]}")
            time.sleep(0.1)

    def written(self):
        with open(self.log.name, errors="replace") as log:
            return log.read()

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def drain_seconds(self):
        """Asks it to end, and returns the time that it takes."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(60)
        return time.monotonic() - began

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def kill_all():
    """Kills all that has not been ended: a part has failed."""
    for process in Process.running:
        if process.process.poll() is None:
            process.kill()


class Server(Process):
    """A server on the oracle, with gRPC and KV events."""

    def __init__(self, program, tokenizer, *arguments):
        command = [program, "--oracle", "--name", MODEL, "--port", "0"]
        command += ["--grpc", "127.0.0.1:0", "--grpc-tokenizer", tokenizer]
        command += ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", "tcp://127.0.0.1:0"]
        command += ["--kv-events-block-size", str(BLOCK_TOKENS)]
        super().__init__("motet-server", [*command, *arguments])
        self.facts = {}
        self.until(self.read_facts)
        self.http = f"http://{self.facts['address']}"
        self.grpc = self.facts["grpc"]
        self.kv_events = self.facts["kv_events"]
        self.kv_events_replay = self.facts["kv_events_replay"]

    def read_facts(self):
        for line in self.written().splitlines():
            self.facts.update(json.loads(line))
        return "address" in self.facts and "grpc" in self.facts

    def counted(self, name):
        return counted(f"{self.http}/metrics", name)

    def streams(self):
        return sum(self.counted(f"vllm:num_requests_{state}") for state in ("running", "waiting"))


def module(packages, name, *arguments):
    """A command for a Python module of these packages."""
    return [sys.executable, "-s", "-B", "-m", name, *arguments], {"PYTHONPATH": packages}


class Sidecar(Process):
    """Dynamo's worker beside a server."""

    def __init__(self, packages, server, environment):
        arguments = ["--grpc-endpoint", server.grpc, "--discovery-backend", "file"]
        command, more = module(packages, "dynamo.vllm.sidecar", *arguments)
        super().__init__("dynamo.vllm.sidecar", command, {**environment, **more})


class Worker(Process):
    """Dynamo's worker with the engine in process."""

    def __init__(self, program, tokenizer, environment, *arguments):
        # Dynamo reads its number as one of 16 bits with a sign.
        port = free_port_below(1 << 15)
        self.system = f"http://127.0.0.1:{port}"
        command = [program, "--name", MODEL, "--tokenizer", tokenizer]
        command += ["--block-tokens", str(BLOCK_TOKENS), *arguments]
        environment = {**environment, "DYN_SYSTEM_PORT": str(port), "DYN_SYSTEM_HOST": "127.0.0.1"}
        super().__init__("dynamo-worker", command, environment)
        self.until(lambda: get(f"{self.system}/health"))

    def streams(self):
        return counted(f"{self.system}/metrics", "dynamo_component_inflight_requests")


class Dynamo:
    """Dynamo's frontend, and the workers that `starts` start in its environment. Files are its
    discovery."""

    name = "Dynamo"

    def __init__(self, packages, starts, *frontend):
        self.folder = tempfile.TemporaryDirectory()
        environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": self.folder.name,
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
        }
        self.workers = [start(environment) for start in starts]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--http-host", "127.0.0.1", "--http-port", str(port)]
        arguments += ["--router-mode", "kv", *frontend]
        command, more = module(packages, "dynamo.frontend", *arguments)
        self.frontend = Process("dynamo.frontend", command, {**environment, **more})
        self.frontend.until(lambda: json.loads(get(f"{self.url}/v1/models"))["data"])
        # The frontend knows the model from the first worker on; the others follow within a moment.
        self.frontend.until(lambda: self.registered() >= len(self.workers))

    def registered(self):
        instances = json.loads(get(f"{self.url}/health")).get("instances", [])
        return sum(instance.get("endpoint") == "generate" for instance in instances)

    def continued(self):
        """The requests that it has sent on to another worker."""
        return counted(f"{self.url}/metrics", "dynamo_frontend_model_migration_total")

    def end(self):
        for process in [self.frontend, *self.workers]:
            process.end()
        self.folder.cleanup()


class Router:
    """A router of one process that knows the addresses of its workers."""

    def __init__(self, packages, name, arguments, environment=None):
        port, metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
        arguments += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        command, more = module(packages, name, *arguments)
        self.process = Process(name, command, {**more, **(environment or {})})
        self.process.until(lambda: json.loads(get(f"{self.url}/v1/models"))["data"])

    def end(self):
        self.process.end()


class VllmRouter(Router):
    """vLLM's router, which renders chats itself and sends tokens by gRPC."""

    name = "vllm-router"

    def __init__(self, packages, servers, tokenizer):
        arguments = ["--policy", "cache_aware", "--worker-urls"]
        arguments += [f"grpc://{server.grpc}" for server in servers]
        environment = {"VLLM_ROUTER_TOKENIZER": tokenizer, "HF_HUB_OFFLINE": "1"}
        super().__init__(packages, "vllm_router.launch_router", arguments, environment)


class Smg(Router):
    """smg, the successor of sglang-router, which passes HTTP on."""

    name = "smg"

    def __init__(self, packages, servers):
        arguments = ["launch", "--policy", "cache_aware", "--worker-urls"]
        arguments += [server.http for server in servers]
        super().__init__(packages, "smg.cli", arguments)


class Indexer:
    """Dynamo's index of cached blocks, fed by the events of servers."""

    def __init__(self, packages, servers):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["--block-size", str(BLOCK_TOKENS), "--port", str(port)]
        command, environment = module(packages, "dynamo.indexer", *arguments)
        self.process = Process("dynamo.indexer", command, environment)
        self.process.until(lambda: get(f"{self.url}/health") or True)
        for number, server in enumerate(servers, 1):
            worker = {"instance_id": number, "block_size": BLOCK_TOKENS, "dp_rank": 0}
            worker |= {"endpoint": server.kv_events, "replay_endpoint": server.kv_events_replay}
            self.post("register", worker)

    def post(self, path, fields):
        return post(f"{self.url}/{path}", {"model_name": MODEL, **fields})

    def query(self, tokens, salt=None):
        return self.post("query", {"token_ids": tokens, "cache_salt": salt})

    def end(self):
        self.process.end()
