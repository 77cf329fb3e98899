"""Runs llm-comply's checks of three formats: llm_comply_client.py URL PACKAGES

llm-comply validates answers and events with the schemas of each API. The file llm_comply.toml names the
checks that do not pass, each with its reason. A named check that passes is an error, like another that
does not.
"""

import json
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

url, packages = sys.argv[1:]
# Its requests get the temperature 0, so that each run has the same answers.
PROGRAM = """
import sys
sys.path.append(sys.argv.pop(1))
from llm_comply import cli, runner
send = runner.make_request
def send_greedy(config, endpoint, body, **settings):
    return send(config, endpoint, {**body, "temperature": 0}, **settings)
runner.make_request = send_greedy
cli.main(sys.argv[1:])
"""
FORMATS = {
    "openai-chat": ["--base-url", f"{url}/v1"],
    "open-responses": ["--base-url", f"{url}/v1"],
    "anthropic": [
        *["--base-url", f"{url}/v1", "--auth-header", "x-api-key", "--no-bearer"],
        *["--header", "anthropic-version:2023-06-01"],
    ],
}
# The oracle makes as many calls as it may, so that the greatest length ends them.
IGNORED_ON_ORACLE = ["--ignore", "got 'max_tokens'"]


def results(model, name):
    words = ["--format", name, *FORMATS[name], "--api-key", "none", "--model", model]
    words += ["--timeout", "300", "--json"]
    if model == "oracle":
        words += IGNORED_ON_ORACLE
    command = [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, packages, *words]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return json.loads(printed.stdout)["results"]


def main():
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    with open(Path(__file__).parent / "llm_comply.toml", "rb") as file:
        left_out = tomllib.load(file)
    wrong, passed, others = [], 0, 0
    for name in FORMATS:
        reasons = dict(left_out[name])
        for result in results(model, name):
            reason = reasons.pop(result["id"], None)
            if result["status"] == "passed":
                passed += 1
                if reason:
                    wrong.append(f"{result['id']} passes, though llm_comply.toml says: {reason}")
            else:
                others += 1
                if not reason:
                    wrong.append(f"{result['id']} {result['status']}: {result.get('errors')}")
        wrong += [f"llm_comply.toml lists {left}, which is no check of {name}" for left in reasons]
    for line in wrong:
        print(f"\n{line[:3000]}")
    assert passed, "no check passed"
    assert not wrong, f"{len(wrong)} checks differ from llm_comply.toml"
    print(f"{passed} pass, {others} are left out with a reason")


main()
