"""Checks that LangChain works with this server: langchain_client.py URL [PACKAGES]"""

import json
import sys
import time
import urllib.request

url, *packages = sys.argv[1:]
sys.path.extend(packages)

import openai  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI, OpenAI  # noqa: E402

url = url.rstrip("/")
with urllib.request.urlopen(f"{url}/v1/models") as answer:
    model = json.load(answer)["data"][0]["id"]
server = {"base_url": f"{url}/v1", "api_key": "none", "model": model, "max_retries": 0}
question = [("system", "Answer in one sentence."), ("human", "What is a motet?")]


def voice(**fields):
    return ChatOpenAI(**{**server, "temperature": 0, "max_tokens": 24, **fields})


def chat():
    reply = voice().invoke(question)
    assert reply.content == voice().invoke(question).content
    assert reply.response_metadata["finish_reason"] in ("stop", "length")
    usage = reply.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    again = voice().invoke(question)
    assert again.usage_metadata["input_token_details"]["cache_read"] > 0


def streaming():
    whole = voice().invoke(question)
    parts = list(voice(stream_usage=True).stream(question))
    assert len(parts) > 2
    assert "".join(part.content for part in parts) == whole.content
    spent = sum(part.usage_metadata["output_tokens"] for part in parts if part.usage_metadata)
    assert spent == whole.usage_metadata["output_tokens"]


def tools():
    @tool
    def clock(zone: str) -> str:
        """Tells the time."""
        return zone

    call = {"id": "c1", "name": "clock", "args": {"zone": "here"}}
    conversation = [
        *question,
        AIMessage(content="", tool_calls=[call]),
        ToolMessage(content="noon", tool_call_id="c1"),
    ]
    reply = voice().bind_tools([clock]).invoke(conversation)
    assert reply.response_metadata["finish_reason"] in ("stop", "length")
    without = voice().invoke(conversation)
    assert reply.usage_metadata["input_tokens"] > without.usage_metadata["input_tokens"]


def logprobs():
    reply = voice(logprobs=True, top_logprobs=2).invoke(question)
    tokens = reply.response_metadata["logprobs"]["content"]
    assert len(tokens) == reply.usage_metadata["output_tokens"]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


def several():
    messages = [SystemMessage(question[0][1]), HumanMessage(question[1][1])]
    answers = voice(n=3, seed=1, temperature=1.2).generate([messages]).generations[0]
    assert len({answer.text for answer in answers}) == 3


def stop():
    writer = OpenAI(**{**server, "temperature": 0, "max_tokens": 24})
    free = writer.invoke("Once upon a time")
    end = free[len(free) // 2 :][:3]
    assert writer.invoke("Once upon a time", stop=[end]) == free[: free.index(end)]


def best_of():
    choosy = OpenAI(**{**server, "temperature": 1.2, "max_tokens": 12, "n": 2, "best_of": 4})
    answers = choosy.generate(["Once upon a time"])
    assert len(answers.generations[0]) == 2
    assert answers.llm_output["token_usage"]["completion_tokens"] > 2 * 12


def schema():
    shape = {
        "title": "answer",
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    held = voice(max_tokens=400).with_structured_output(
        shape, method="json_schema", include_raw=True
    )
    answer = held.invoke(question)
    if answer["raw"].response_metadata["finish_reason"] == "stop":
        assert answer["parsed"]["answer"] in ("yes", "no"), answer


def errors():
    def fails(kind, param, **fields):
        try:
            voice(**fields).invoke(question)
        except kind as error:
            assert error.body["param"] == param, error.body
        else:
            raise AssertionError(f"{fields} was accepted")

    fails(openai.BadRequestError, "top_p", top_p=7)
    fails(openai.BadRequestError, "n", n=1000)
    fails(openai.NotFoundError, "model", model="another")


def cancel():
    def running():
        with urllib.request.urlopen(f"{url}/health") as answer:
            return json.load(answer)["running"]

    stream = voice(max_tokens=4000, extra_body={"ignore_eos": True}).stream(question)
    next(stream)
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


for check in (chat, streaming, tools, logprobs, several, stop, best_of, schema, errors, cancel):
    check()
    print(f"{check.__name__}: ok")
