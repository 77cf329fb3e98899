"""Checks that the Messages API works with the official client: anthropic_client.py URL [PACKAGES]"""

import json
import sys
import time
import urllib.request

url, *packages = sys.argv[1:]
sys.path.extend(packages)

import anthropic  # noqa: E402

url = url.rstrip("/")
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
with urllib.request.urlopen(f"{url}/v1/models") as listed:
    model = json.load(listed)["data"][0]["id"]
is_oracle = model == "oracle"
question = {
    "model": model,
    "system": "Answer in one sentence.",
    "messages": [{"role": "user", "content": "What is a motet?"}],
    # A field that this client no longer has a name for.
    "extra_body": {"temperature": 0},
}
zones = ["here", "there"]
clock = {
    "name": "clock",
    "description": "Tells the time.",
    "input_schema": {
        "type": "object",
        "properties": {"zone": {"enum": zones}},
        "required": ["zone"],
        "additionalProperties": False,
    },
}


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def whole():
    message = client.messages.create(max_tokens=24, **question)
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    assert message.stop_reason in ("end_turn", "max_tokens"), message
    assert message.usage.output_tokens <= 24
    blocks = {
        **question,
        "system": [{"type": "text", "text": "Answer in one sentence."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is a motet?"}]}
        ],
    }
    again = client.messages.create(max_tokens=24, **blocks)
    assert text(again) == text(message)
    # Input tokens are those that were not read from the cache.
    assert again.usage.cache_read_input_tokens > 0
    total = again.usage.input_tokens + again.usage.cache_read_input_tokens
    assert total == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    counted = client.messages.count_tokens(
        **{name: value for name, value in question.items() if name != "extra_body"}
    )
    assert counted.input_tokens == total


def streaming():
    expected = client.messages.create(max_tokens=24, **question)
    with client.messages.stream(max_tokens=24, **question) as stream:
        deltas = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(deltas) > 1
    assert "".join(deltas) == text(final) == text(expected)
    assert final.stop_reason == expected.stop_reason
    assert final.usage.output_tokens == expected.usage.output_tokens

    events = list(client.messages.create(max_tokens=24, stream=True, **question))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds


def tools():
    for choice in ({"type": "any"}, {"type": "tool", "name": "clock"}):
        choice["disable_parallel_tool_use"] = True
        asked = {**question, "tools": [clock], "tool_choice": choice, "max_tokens": 400}
        message = client.messages.create(**asked)
        (call,) = [block for block in message.content if block.type == "tool_use"]
        assert call.name == "clock" and call.input["zone"] in zones, call
        assert message.stop_reason == "tool_use", message
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        assert kinds.count("input_json") > 1, kinds
        (streamed,) = [block for block in final.content if block.type == "tool_use"]
        assert (streamed.name, streamed.input) == (call.name, call.input)
        assert final.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "noon"}
        messages = [
            *question["messages"],
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        client.messages.create(**{**question, "messages": messages}, tools=[clock], max_tokens=24)


def reasoning():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = {**question, "thinking": thinking, "max_tokens": 1200}
    message = client.messages.create(**asked)
    kinds = [block.type for block in message.content]
    assert "thinking" in kinds or not is_oracle, kinds
    with client.messages.stream(**asked) as stream:
        thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
        final = stream.get_final_message()
    joined = "".join(block.thinking for block in final.content if block.type == "thinking")
    assert thoughts == joined
    assert bool(thoughts) == ("thinking" in kinds)


def stop():
    free = text(client.messages.create(max_tokens=24, **question))
    # White space alone is not allowed.
    middle = len(free) // 2
    ends = (free[at : at + 3] for at in range(middle, len(free) - 3))
    end = next((end for end in ends if end.strip() == end), None)
    if end is None:
        return
    held = client.messages.create(max_tokens=24, stop_sequences=[end], **question)
    assert text(held) == free[: free.index(end)], (free, end, held)
    assert (held.stop_reason, held.stop_sequence) == ("stop_sequence", end)


def errors():
    def fails(kind, field, **fields):
        try:
            client.messages.create(**{**question, "max_tokens": 8, **fields})
        except kind as error:
            assert error.body["type"] == "error", error.body
            assert field in error.body["error"]["message"], error.body
        else:
            raise AssertionError(f"{fields} was accepted")

    fails(anthropic.BadRequestError, "temperature", extra_body={"temperature": -1})
    fails(anthropic.BadRequestError, "messages", messages=[])
    fails(anthropic.BadRequestError, "max_tokens", max_tokens=0)
    fails(anthropic.NotFoundError, "model", model="another")
    unknown = {"type": "tool", "name": "calendar"}
    fails(anthropic.BadRequestError, "tool_choice", tools=[clock], tool_choice=unknown)


def cancel():
    def running():
        with urllib.request.urlopen(f"{url}/health") as answer:
            return json.load(answer)["running"]

    # The arguments end at their schema's end only: a model could end its text at any token.
    long = {"type": "array", "items": {"enum": zones}, "minItems": 2000}
    schema = {**clock["input_schema"], "properties": {"zone": long}}
    asked = {**question, "max_tokens": 4000, "tools": [{**clock, "input_schema": schema}]}
    with client.messages.stream(**asked, tool_choice={"type": "tool", "name": "clock"}) as stream:
        next(iter(stream))
        # The first event comes before the sequence has its slot.
        until = time.monotonic() + 30
        while running() == 0:
            assert time.monotonic() < until, "it does not run"
            time.sleep(0.01)
    until = time.monotonic() + 30
    while running() > 0:
        assert time.monotonic() < until, "it still runs"
        time.sleep(0.01)


for check in (whole, streaming, tools, reasoning, stop, errors, cancel):
    check()
    print(f"{check.__name__}: ok")
