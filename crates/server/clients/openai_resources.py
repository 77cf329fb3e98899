"""Runs the tests of OpenAI's client against the server: openai_resources.py URL PACKAGES

They are part of the client's source, which pip downloads by its digest. They send every field of a
resource, and check the types of what comes back. They name a model, responses and items of their own
server; here these are the server's. The file openai_resources.toml names the tests that
do not pass, each with its reason. A named test that passes is an error, like another that does not.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from pathlib import Path

url, packages = sys.argv[1:]
sys.path.append(packages)

import openai  # noqa: E402
import pytest  # noqa: E402

HERE = Path(__file__).parent
# The resources that the server has.
FILES = (
    "chat/test_completions.py",
    "test_completions.py",
    "test_embeddings.py",
    "test_models.py",
    "test_responses.py",
    "responses/test_input_items.py",
)


def source(folder):
    """The client's source, unpacked."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-cache-dir", "--require-hashes"]
    # Its metadata is built with packages of the list.
    pip += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    pip += ["--requirement", str(HERE / "openai_source.txt")]
    subprocess.run(pip, check=True, env={**os.environ, "PYTHONPATH": packages})
    (archive,) = folder.glob("openai-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


class Outcomes:
    """Collects the outcome of each test, by class and name."""

    def __init__(self):
        self.passed, self.others = set(), {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.removeprefix("tests/api_resources/")
        if report.outcome == "passed":
            if report.when == "call":
                self.passed.add(name)
        else:
            self.others[name] = str(report.longrepr).strip()[-600:]


# Ids of responses in the tests.
RESPONSE = re.compile(r"^/responses/(resp_677efb5139a88190b512bc3fef8e535d|response_id)(?=$|/input_items)")


def stored_response():
    """The id of a new response."""
    body = json.dumps({"input": "What is a motet?", "max_output_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/responses", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["id"]


def fit_requests(model):
    """Makes the client ask for what the server has, whatever the tests name."""
    prepare = openai.OpenAI._prepare_options

    def prepared(self, options):
        options = prepare(self, options)
        if isinstance(options.json_data, dict) and "model" in options.json_data:
            options.json_data = {**options.json_data, "model": model}
        if options.method == "post" and options.url == "/responses":
            # Where the tests send no input, they would continue a prompt that the service stores.
            options.json_data = {"input": "What is a motet?", **(options.json_data or {})}
        if options.method == "get":
            options.url = re.sub("^/models/[^/]+$", f"/models/{model}", options.url)
        if RESPONSE.match(options.url):
            options.url = RESPONSE.sub(f"/responses/{stored_response()}", options.url)
        return options

    openai.OpenAI._prepare_options = prepared


def main():
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    with open(HERE / "openai_resources.toml", "rb") as file:
        left_out = tomllib.load(file)["left_out"]
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        tests = source(Path(folder))
        os.environ["TEST_API_BASE_URL"] = f"{url}/v1"
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        fit_requests(model)
        os.chdir(tests)
        sys.path.insert(0, str(tests))
        words = [f"tests/api_resources/{file}" for file in FILES]
        words += ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-W", "ignore"]
        words += ["-p", "pytest_asyncio.plugin", "-o", "addopts=", "-o", "asyncio_mode=auto"]
        # Both classes of a resource send the same.
        words += ["-k", "not Async"]
        pytest.main(words, plugins=[outcomes])
    reasons = {}
    for name in [*outcomes.passed, *outcomes.others]:
        pattern = next((one for one in left_out if fnmatch.fnmatchcase(name, one)), None)
        if pattern:
            reasons.setdefault(pattern, []).append(name)
    named = {name for names in reasons.values() for name in names}
    wrong = [f"{name} fails: {why}" for name, why in outcomes.others.items() if name not in named]
    wrong += [f"{name} passes, though it is listed" for name in outcomes.passed & named]
    wrong += [f"{pattern!r} is no test" for pattern in left_out if pattern not in reasons]
    for line in sorted(wrong):
        print(f"\n{line}")
    assert outcomes.passed, "no test passed"
    assert not wrong, f"{len(wrong)} tests differ from openai_resources.toml"
    print(f"{len(outcomes.passed)} pass, {len(outcomes.others)} are left out with a reason")


main()
