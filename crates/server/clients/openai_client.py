"""Checks that the official OpenAI client works with this server: openai_client.py URL [PACKAGES]"""

import json
import sys
import time
import urllib.request

url, *packages = sys.argv[1:]
sys.path.extend(packages)

import openai  # noqa: E402

url = url.rstrip("/")
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
question = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "What is a motet?"},
]
greedy = {"model": model, "temperature": 0, "max_tokens": 24}
# Calls need more tokens than a sentence.
long = {"model": model, "temperature": 0, "max_tokens": 400}
is_oracle = model == "oracle"
zones = ["here", "there"]
clock = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "Tells the time.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": zones}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}
one_call = {"tools": [clock], "parallel_tool_calls": False, **long}


def chat():
    whole = client.chat.completions.create(messages=question, **greedy)
    assert whole.object == "chat.completion", whole
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    again = client.chat.completions.create(messages=question, **greedy)
    assert again.choices[0].message.content == whole.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def streaming():
    whole = client.chat.completions.create(messages=question, **greedy)
    parts = list(
        client.chat.completions.create(
            messages=question, stream=True, stream_options={"include_usage": True}, **greedy
        )
    )
    reply = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert reply == whole.choices[0].message.content, (reply, whole)
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    ends = [part.choices[0].finish_reason for part in parts if part.choices]
    assert [end for end in ends if end] == [whole.choices[0].finish_reason]


def tools():
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    conversation = [
        *question,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answer = client.chat.completions.create(messages=conversation, tools=[clock], **greedy)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    named = {"type": "function", "function": {"name": "clock"}}
    for choice in ("required", named):
        asked = {"messages": question, "tool_choice": choice, **one_call}
        answer = client.chat.completions.create(**asked)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "clock" and call.type == "function", call
        assert json.loads(call.function.arguments)["zone"] in zones, call
        assert answer.choices[0].finish_reason == "tool_calls", answer
        # The ids of calls go back with their results.
        results = [
            answer.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "noon"},
        ]
        client.chat.completions.create(messages=[*question, *results], tools=[clock], **greedy)


def accumulated():
    """The client joins the deltas of a stream itself."""
    asked = {"messages": question, "tool_choice": "required", **one_call}
    whole = client.chat.completions.create(**asked).choices[0].message.tool_calls[0]
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 1, kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1, kinds
    (call,) = final.choices[0].message.tool_calls
    assert call.function.name == "clock"
    assert call.function.arguments == whole.function.arguments, (call, whole)
    assert final.choices[0].finish_reason == "tool_calls"

    with client.chat.completions.stream(messages=question, **greedy) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        # The client's final completion rejects an answer of the greatest length.
        final = stream.current_completion_snapshot
    whole = client.chat.completions.create(messages=question, **greedy)
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].message.content == whole.choices[0].message.content


def reasoning():
    """Thoughts come apart from the answer, whole and in a stream, as far as the model has any."""
    asked = {
        "messages": question,
        "reasoning_effort": "low",
        "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
        **long,
    }
    whole = client.chat.completions.create(**asked)
    message = whole.choices[0].message
    thoughts = getattr(message, "reasoning_content", None)
    spent = whole.usage.completion_tokens_details.reasoning_tokens
    assert (spent > 0) == bool(thoughts), whole
    parts = client.chat.completions.create(stream=True, **asked)
    deltas = [part.choices[0].delta for part in parts if part.choices]
    streamed = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert streamed == (thoughts or ""), (streamed, thoughts)
    assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
    assert thoughts or not is_oracle, "the oracle's template opens the reasoning"


def logprobs():
    answer = client.chat.completions.create(
        messages=question, logprobs=True, top_logprobs=2, **greedy
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    assert all(token.top_logprobs[0].logprob == token.logprob for token in tokens)


def several():
    answer = client.chat.completions.create(
        messages=question, model=model, n=3, seed=1, temperature=1.2, max_tokens=12
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def stop():
    free = client.completions.create(prompt="Once upon a time", **greedy).choices[0].text
    end = free[len(free) // 2 :][:3]
    held = client.completions.create(prompt="Once upon a time", stop=[end], **greedy)
    assert held.choices[0].text == free[: free.index(end)], (free, end, held)
    assert held.choices[0].finish_reason == "stop"


def schema():
    shape = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        messages=question,
        model=model,
        temperature=0,
        max_tokens=400,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": shape}},
    )
    if answer.choices[0].finish_reason == "stop":
        assert json.loads(answer.choices[0].message.content)["answer"] in ("yes", "no")


def errors():
    def fails(kind, param=None, **fields):
        try:
            client.chat.completions.create(**{"messages": question, **greedy, **fields})
        except kind as error:
            assert error.body["param"] == param, error.body
        else:
            raise AssertionError(f"{fields} was accepted")

    fails(openai.BadRequestError, "temperature", temperature=-1)
    fails(openai.BadRequestError, "top_p", top_p=7)
    fails(openai.NotFoundError, "model", model="another")
    fails(openai.BadRequestError, "tool_choice", tool_choice="required")
    unknown = {"type": "function", "function": {"name": "calendar"}}
    fails(openai.BadRequestError, "tool_choice", tools=[clock], tool_choice=unknown)
    fails(openai.BadRequestError, "tools[1].function.name", tools=[clock, clock])


def cancel():
    def running():
        with urllib.request.urlopen(f"{url}/health") as answer:
            return json.load(answer)["running"]

    stream = client.chat.completions.create(
        messages=question,
        model=model,
        max_tokens=4000,
        stream=True,
        extra_body={"ignore_eos": True},
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


CHECKS = (
    chat,
    streaming,
    tools,
    accumulated,
    reasoning,
    logprobs,
    several,
    stop,
    schema,
    errors,
    cancel,
)
for check in CHECKS:
    check()
    print(f"{check.__name__}: ok")
