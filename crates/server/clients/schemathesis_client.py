"""Checks this server against its own OpenAPI description: schemathesis_client.py URL PACKAGES KEY CASES

Asks for what the description at /openapi.json allows, and for what it does not, CASES times
for each operation and for every edge of every field besides.
"""

import os
import sys
import tempfile

url, packages, key, cases = sys.argv[1:]
sys.path.append(packages)

from schemathesis.cli import schemathesis  # noqa: E402

# Data that fits the description may still be rejected: some fields depend on each other
# (`min_tokens` on `max_tokens`), and templates and schemas are checked by their content.
excluded = "positive_data_acceptance"

words = ["run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {key}"]
words += ["--checks", "all", "--exclude-checks", excluded, "--max-examples", cases]
words += ["--phases", "examples,coverage,fuzzing", "--seed", "1", "--workers", "1"]
words += ["--continue-on-failure", "--no-shrink"]
# A request may ask for ten contexts full of tokens, which takes a while.
words += ["--request-timeout", "300", "--max-response-time", "300"]
with tempfile.TemporaryDirectory() as folder:
    # It writes notes for its next run to its working directory.
    os.chdir(folder)
    schemathesis(words)
