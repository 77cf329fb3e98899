"""Runs LangChain's standard tests of chat models: langchain_standard.py URL PACKAGES DIALECT

DIALECT is openai or anthropic. The file langchain_standard/left_out.toml lists the tests that do not
pass, each with its reason. A listed test that passes is an error, like an unlisted one that does not.
"""

import json
import os
import sys
import tomllib
import urllib.request
from pathlib import Path

url, packages, dialect = sys.argv[1:]
sys.path.append(packages)

import pytest  # noqa: E402

FOLDER = Path(__file__).parent / "langchain_standard"
# Plugins that the tests have fixtures of; others are not loaded.
PLUGINS = ["pytest_asyncio.plugin", "syrupy", "pytest_recording.plugin", "pytest_benchmark.plugin"]


class Outcomes:
    """Collects the outcome of each test."""

    def __init__(self):
        self.passed, self.others = set(), {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::")[-1]
        if report.outcome == "passed":
            if report.when == "call":
                self.passed.add(name)
            return
        why = report.longrepr
        why = str(why[2]) if isinstance(why, tuple) else str(why).strip()
        self.others[name] = (report.outcome, why)


def expected(model):
    """The tests that are not to pass with this model, by name."""
    with open(FOLDER / "left_out.toml", "rb") as file:
        tables = tomllib.load(file)[dialect]
    # A model that has no list of its own has the list that is for all.
    return {**tables["all"], **tables.get(model, {})}


def main():
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    os.environ.update(SERVER_URL=url, SERVER_MODEL=model, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        os.environ[name] = "false"
    words = [str(FOLDER / f"test_{dialect}.py"), "-q", "--no-header", "-p", "no:cacheprovider"]
    words += ["--rootdir", str(FOLDER), "-o", "asyncio_mode=auto", "--tb=line"]
    # Tests that differ from the list are printed below.
    words += ["--no-summary"]
    words += ["--benchmark-disable", "-W", "ignore"]
    # LangChain keeps connections across tests.
    for kind in ("test", "fixture"):
        words += ["-o", f"asyncio_default_{kind}_loop_scope=session"]
    for plugin in PLUGINS:
        words += ["-p", plugin]
    outcomes = Outcomes()
    pytest.main(words, plugins=[outcomes])
    left_out = expected(model)
    wrong = []
    for name, (outcome, why) in sorted(outcomes.others.items()):
        if name not in left_out:
            wrong.append(f"{name} {outcome}: {why[-1500:]}")
    for name in sorted(set(left_out) & outcomes.passed):
        wrong.append(f"{name} passes, though left_out.toml says: {left_out[name]}")
    for name in sorted(set(left_out) - outcomes.passed - set(outcomes.others)):
        wrong.append(f"left_out.toml lists {name}, which is no test")
    for line in wrong:
        print(f"\n{line}")
    assert outcomes.passed, "no test passed"
    assert not wrong, f"{len(wrong)} tests differ from left_out.toml"
    print(f"{len(outcomes.passed)} pass, {len(outcomes.others)} are left out with a reason")


main()
