"""Whether this server is as it says: schemathesis_client.py URL PACKAGES KEY CASES

Asks for what the description at /openapi.json allows, and for what it does not, CASES times
for each operation and for every edge of every field besides.
"""

import os
import sys
import tempfile

url, packages, key, cases = sys.argv[1:]
sys.path.append(packages)

from schemathesis.cli import schemathesis  # noqa: E402

# Not that all which fits the description is taken: some fields depend on each other
# (`min_tokens` on `max_tokens`), and templates and schemas are judged by what they say.
excluded = "positive_data_acceptance"

words = ["run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {key}"]
words += ["--checks", "all", "--exclude-checks", excluded, "--max-examples", cases]
words += ["--phases", "examples,coverage,fuzzing", "--seed", "1", "--workers", "1"]
words += ["--continue-on-failure", "--no-shrink"]
# Ten contexts full of tokens may be asked for, and are answered.
words += ["--request-timeout", "300", "--max-response-time", "300"]
with tempfile.TemporaryDirectory() as folder:
    # It leaves notes for its next run where it runs.
    os.chdir(folder)
    schemathesis(words)
