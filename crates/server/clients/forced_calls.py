"""Checks forced calls with random tools: forced_calls.py URL PACKAGES TOOLS

Offers TOOLS random tools, a few at a time, and forces a call: of any, or by name. Each call must fit
its schema. The deltas of a stream must join to the same call as a whole answer. Every fourth stream
is closed in the middle of its call; none of the others may suffer from it.
"""

import itertools
import json
import random
import string
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

url, packages, number = sys.argv[1:]
sys.path.append(packages)

import jsonschema  # noqa: E402
import openai  # noqa: E402

url = url.rstrip("/")
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
TOOLS_EACH = 3
DEPTH_MAX = 3
# As many calls at once as a few agents make.
AT_ONCE = 4


def word(chance):
    return "".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9)))


def value(chance, depth):
    """A schema whose values are short, so that a call ends before its greatest length."""
    kinds = ["string", "enum", "integer", "number", "step", "free", "boolean", "null", "either", "date"]
    if depth < DEPTH_MAX:
        kinds += ["object", "array", "object"]
    kind = chance.choice(kinds)
    if kind == "string":
        return {"type": "string", "maxLength": chance.randint(1, 12)}
    if kind == "enum":
        return {"enum": [word(chance) for _ in range(chance.randint(1, 4))] + [chance.randint(0, 9)]}
    if kind == "integer":
        low = chance.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 1000)}
    if kind == "number":
        above = chance.choice(["maximum", "exclusiveMaximum"])
        return {"type": "number", "minimum": 0, above: 100}
    if kind == "step":
        return {"type": "number", "multipleOf": chance.choice([0.25, 0.75, 2.5, 3])}
    if kind == "free":
        return {"type": chance.choice(["number", "integer"])}
    if kind == "either":
        return {"anyOf": [value(chance, depth + 1), {"type": "null"}]}
    if kind == "date":
        return {"type": "string", "pattern": "^[0-9]{4}-[01][0-9]-[0-3][0-9]$"}
    if kind == "array":
        items = value(chance, depth + 1)
        return {"type": "array", "items": items, "maxItems": chance.randint(1, 3)}
    if kind == "object":
        return fields(chance, depth + 1)
    return {"type": kind}


def fields(chance, depth):
    names = {word(chance) for _ in range(chance.randint(1, 4))}
    properties = {name: value(chance, depth) for name in sorted(names)}
    needed = [name for name in properties if chance.random() < 0.7]
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def tool(chance, number):
    described = {"description": f"Does {word(chance)}."} if chance.random() < 0.5 else {}
    function = {"name": f"{word(chance)}_{number}", **described, "parameters": fields(chance, 0)}
    if chance.random() < 0.3:
        function["strict"] = True
    return {"type": "function", "function": function}


def request(number):
    chance = random.Random(number)
    tools = [tool(chance, number * TOOLS_EACH + index) for index in range(TOOLS_EACH)]
    choice = "required"
    if chance.random() < 0.5:
        choice = {"type": "function", "function": {"name": tools[1]["function"]["name"]}}
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Please {word(chance)} the {word(chance)}."}],
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": chance.choice([0, 1]),
        "seed": number,
        "max_tokens": 2048,
    }


def check_call(asked, name, arguments):
    offered = {tool["function"]["name"]: tool["function"] for tool in asked["tools"]}
    assert name in offered, (name, list(offered))
    choice = asked["tool_choice"]
    if choice != "required":
        assert name == choice["function"]["name"], (name, choice)
    schema = offered[name]["parameters"]
    jsonschema.validate(json.loads(arguments), schema, jsonschema.Draft202012Validator)


def streamed(asked, deltas_max=None):
    """The name and the arguments of a streamed call, or nothing if it is closed before its end."""
    name, arguments, deltas = "", "", 0
    with client.chat.completions.create(stream=True, **asked) as parts:
        for part in parts:
            for choice in part.choices:
                for call in choice.delta.tool_calls or []:
                    assert call.index == 0, part
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
                    deltas += 1
                    if deltas == deltas_max:
                        return None
    return name, arguments


def check(number):
    asked = request(number)
    if number % 4 == 3:
        streamed(asked, deltas_max=2)
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls", (number, answer)
    (call,) = answer.message.tool_calls
    check_call(asked, call.function.name, call.function.arguments)
    joined = streamed(asked)
    assert joined == (call.function.name, call.function.arguments), (number, joined, call)


def running():
    with urllib.request.urlopen(f"{url}/health") as answer:
        health = json.load(answer)
    return health["running"] + health["waiting"]


def main():
    requests = -(-int(number) // TOOLS_EACH)
    wrong = []

    def checked(number):
        try:
            check(number)
        except Exception as error:  # All are reported, with their numbers.
            wrong.append(f"{number}: {type(error).__name__}: {error}"[:2000])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(checked, range(requests)))
    until = time.monotonic() + 30
    while running() > 0:
        assert time.monotonic() < until, "closed streams still run"
        time.sleep(0.01)
    for line in itertools.islice(wrong, 10):
        print(line)
    assert not wrong, f"{len(wrong)} of {requests} requests are wrong"
    print(f"{requests} forced calls of {requests * TOOLS_EACH} random tools: ok")


main()
