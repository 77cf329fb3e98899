"""Checks that the Responses API works with the official client: responses_client.py URL [PACKAGES]"""

import json
import sys
import time
import urllib.request

url, *packages = sys.argv[1:]
sys.path.extend(packages)

import openai  # noqa: E402
from pydantic import BaseModel  # noqa: E402
from typing import Literal  # noqa: E402

url = url.rstrip("/")
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
greedy = {"model": model, "temperature": 0, "max_output_tokens": 24}
long = {"model": model, "temperature": 0, "max_output_tokens": 400}
is_oracle = model == "oracle"
zones = ["here", "there"]
clock = {
    "type": "function",
    "name": "clock",
    "description": "Tells the time.",
    "parameters": {
        "type": "object",
        "properties": {"zone": {"enum": zones}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "strict": True,
}


def whole():
    answer = client.responses.create(
        input="What is a motet?", instructions="Answer in one sentence.", **greedy
    )
    assert answer.object == "response", answer
    assert answer.status in ("completed", "incomplete"), answer
    if answer.status == "incomplete":
        assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].type == "message" and answer.output[-1].role == "assistant"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    again = client.responses.create(
        input=[{"role": "user", "content": "What is a motet?"}],
        instructions="Answer in one sentence.",
        **greedy,
    )
    assert again.output_text == answer.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def background():
    """A client that loses its connection gets the rest of the answer, and not a second one."""
    asked = {"input": "What is a motet?", **greedy}
    expected = client.responses.create(**asked)
    stream = client.responses.create(background=True, stream=True, **asked)
    seen = []
    for event in stream:
        seen.append(event)
        if len(seen) == 7:
            break
    stream.close()
    response = seen[0].response.id
    after = seen[-1].sequence_number
    rest = client.responses.retrieve(response, stream=True, starting_after=after)
    seen += list(rest)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == expected.output_text
    assert client.responses.retrieve(response).output_text == text
    begun = client.responses.create(background=True, **{**asked, "max_output_tokens": 400})
    assert client.responses.cancel(begun.id).status in ("cancelled", "completed", "incomplete")


def streaming():
    asked = {"input": "What is a motet?", **greedy}
    expected = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == expected.output_text
    assert events[-1].response.output_text == expected.output_text
    assert events[-1].response.usage == expected.usage.model_copy(
        update={"input_tokens_details": events[-1].response.usage.input_tokens_details}
    )

    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        if expected.status == "completed":
            assert stream.get_final_response().output_text == expected.output_text


def tools():
    for choice in ("required", {"type": "function", "name": "clock"}):
        asked = {"input": "What time is it?", "tools": [clock], "tool_choice": choice, **long}
        asked["parallel_tool_calls"] = False
        answer = client.responses.create(**asked)
        (call,) = [item for item in answer.output if item.type == "function_call"]
        assert call.name == "clock" and json.loads(call.arguments)["zone"] in zones, call
        assert answer.status == "completed", answer
        with client.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds.count("response.function_call_arguments.delta") > 1, kinds
        assert kinds.count("response.function_call_arguments.done") == 1, kinds
        (streamed,) = [item for item in final.output if item.type == "function_call"]
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
        # The results go back with the call's id.
        results = [
            {"role": "user", "content": "What time is it?"},
            *answer.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "noon"},
        ]
        client.responses.create(input=results, tools=[clock], **greedy)


def reasoning():
    asked = {"input": "What is a motet?", "reasoning": {"effort": "low"}, **long}
    answer = client.responses.create(**asked)
    thoughts = [item for item in answer.output if item.type == "reasoning"]
    spent = answer.usage.output_tokens_details.reasoning_tokens
    assert (spent > 0) == bool(thoughts), answer
    assert thoughts or not is_oracle, "the oracle's template opens the reasoning"
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    last = events[-1].response
    assert [item.type for item in last.output] == [item.type for item in answer.output]
    for one, other in zip(thoughts, last.output, strict=False):
        assert [part.text for part in one.content or []] == [
            part.text for part in other.content or []
        ]


def structured():
    class Verdict(BaseModel):
        answer: Literal["yes", "no"]

    answer = client.responses.parse(input="Is a motet sung?", text_format=Verdict, **long)
    if answer.status == "completed":
        assert answer.output_parsed.answer in ("yes", "no")


def stored():
    first = client.responses.create(input="My name is Ada.", store=True, **greedy)
    again = client.responses.retrieve(first.id)
    assert again.output_text == first.output_text
    second = client.responses.create(
        input="What is my name?", previous_response_id=first.id, store=True, **greedy
    )
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    client.responses.delete(first.id)
    fails(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    forgotten = client.responses.create(input="I am Bob.", store=False, **greedy)
    fails(openai.APIStatusError, lambda: client.responses.retrieve(forgotten.id))


def fails(kind, ask, param=None):
    try:
        ask()
    except kind as error:
        assert 400 <= error.status_code < 500, error
        if param is not None:
            assert error.body["param"] == param, error.body
    else:
        raise AssertionError("it was accepted")


def errors():
    def refused(kind, param, **fields):
        fails(kind, lambda: client.responses.create(**{"input": "a", **greedy, **fields}), param)

    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.NotFoundError, "model", model="another")
    refused(openai.APIStatusError, "previous_response_id", previous_response_id="resp_nothing")
    refused(openai.BadRequestError, "tool_choice", tool_choice="required")


def cancel():
    def running():
        with urllib.request.urlopen(f"{url}/health") as answer:
            return json.load(answer)["running"]

    # This text ends at its schema's end only: a model could end another one at any token.
    schema = {"type": "array", "items": {"enum": ["la", "li"]}, "minItems": 2000}
    stream = client.responses.create(
        input="Sing.",
        model=model,
        max_output_tokens=4000,
        stream=True,
        text={"format": {"type": "json_schema", "name": "song", "schema": schema}},
    )
    next(iter(stream))
    # The first event comes before the sequence has its slot.
    until = time.monotonic() + 30
    while running() == 0:
        assert time.monotonic() < until, "it does not run"
        time.sleep(0.01)
    stream.close()
    until = time.monotonic() + 30
    while running() > 0:
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.01)


for check in (whole, streaming, background, tools, reasoning, structured, stored, errors, cancel):
    check()
    print(f"{check.__name__}: ok")
