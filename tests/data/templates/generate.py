"""Writes expected.json: what transformers' apply_chat_template makes of the templates here.

    python3 -m pip install transformers==5.23.0 jinja2==3.1.6
    python3 tests/data/templates/generate.py

Neither torch nor a model is needed. A date is written as the format that strftime_now was given,
between the marks U+27E8 and U+27E9, so that the result does not depend on the day.
"""

import json
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent


class Now:
    """Stands for datetime: the present moment spells the format that it is to be written in."""

    @staticmethod
    def now():
        return Now

    @staticmethod
    def strftime(format):
        return "\u27e8" + format + "\u27e9"


chat_template_utils.datetime = Now

# Special tokens of all families under one spelling: templates only write them.
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id):
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place, <b>now</b> & later.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A town's name"},
                    "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "zone": {"type": ["string", "null"]},
                },
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {
    "place": "Zürich's \"old\" town",
    "days": [1, 2],
    "exact": 0.5,
    "whole": 3.0,
    "small": 1e-07,
    "raw": True,
    "zone": None,
    "more": {"b": [], "a": {"x": "ü\n"}},
}
ONE = [message("user", "  What's 2 < 3 & 4?\n")]
THOUGHT = "<think>\nTwo is less.\n</think>\n\nIt is true."
TURNS = [
    message("system", "You are brief. é"),
    message("user", "Hello!"),
    message("assistant", "Hi there.\n"),
    message("user", "Tell me 一 thing 🦙"),
]
LOOP = [
    message("user", "How is the weather?"),
    message("assistant", "", tool_calls=[call("weather", ARGUMENTS, "abcdefghi")]),
    message("tool", '{"sky": "clear"}', name="weather", tool_call_id="abcdefghi"),
]
THOUGHTFUL_LOOP = [
    message("user", "How is the weather?"),
    message("assistant", "<think>\nI ask.\n</think>\n\nLet me see.", tool_calls=[call("weather", {"place": "Bern"}, "abcdefghi")]),
    message("tool", "clear", name="weather", tool_call_id="abcdefghi"),
    message("assistant", "It is clear."),
    message("user", "Thanks."),
]
PARALLEL = [
    message("user", "Both?"),
    message("assistant", "Yes.", tool_calls=[call("weather", {"place": "Bern"}, "abcdefghi"), call("now", {}, "bcdefghij")]),
    message("tool", "clear", name="weather", tool_call_id="abcdefghi"),
    message("tool", "noon", name="now", tool_call_id="bcdefghij"),
]
DOCUMENTS = [{"doc_id": 1, "title": "Bern", "text": "It rains.", "source": ""}]

# name: messages, variables
CASES = {
    "one": (ONE, {}),
    "turns": (TURNS, {}),
    "ended": (TURNS[1:3], {}),
    "thought": ([*ONE, message("assistant", THOUGHT), message("user", "Why?")], {}),
    "reasoning_content": (
        [*ONE, message("assistant", "It is true.", reasoning_content="Two is less.\n"), message("user", "Why?")],
        {},
    ),
    "last_thought": ([*ONE, message("assistant", THOUGHT)], {}),
    "thinking": (TURNS, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "not_thinking": (TURNS, {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}),
    "tools": (TURNS, {"tools": TOOLS}),
    "tool_loop": (LOOP, {"tools": TOOLS}),
    "thoughtful_loop": (THOUGHTFUL_LOOP, {"tools": TOOLS}),
    "parallel_calls": (PARALLEL, {"tools": TOOLS}),
    "documents": (ONE, {"documents": DOCUMENTS}),
    "out_of_order": ([*ONE, *ONE], {}),
    "unknown_role": ([*ONE, message("robot", "beep")], {}),
}
PLAIN = ["one", "turns", "ended", "out_of_order", "unknown_role"]
THINKS = ["thought", "reasoning_content", "last_thought", "thinking", "not_thinking"]
CALLS = ["tools", "tool_loop", "thoughtful_loop", "parallel_calls"]
TEMPLATES = {
    "gemma2": PLAIN,
    "gemma3": PLAIN,
    "gpt-oss": PLAIN + THINKS + CALLS,
    "granite-3.3": PLAIN + THINKS + CALLS + ["documents"],
    "granite-4.0": PLAIN + CALLS + ["documents"],
    "lfm2": PLAIN + ["thought", "last_thought"] + CALLS,
    "llama3": PLAIN + CALLS,
    "ministral-3": PLAIN + ["thought"] + CALLS,
    "mistral-nemo": PLAIN + CALLS,
    "mixtral": PLAIN,
    "olmo2": PLAIN,
    "phi-3.5": PLAIN,
    "phi-4": PLAIN,
    "qwen2.5": PLAIN + CALLS,
    "qwen3-coder": PLAIN + CALLS,
    "qwen3": PLAIN + THINKS + CALLS,
    "qwen3.5": PLAIN + THINKS + CALLS,
    "smollm2": PLAIN,
    "smollm3": PLAIN + ["thought", "thinking", "not_thinking"],
}


def rendered(source, case, generation_prompt):
    messages, variables = CASES[case]
    variables = dict(variables)
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages],
            tools=variables.pop("tools", None),
            documents=variables.pop("documents", None),
            chat_template=source,
            add_generation_prompt=generation_prompt,
            **SPECIAL,
            **variables,
        )
        return {"text": texts[0]}
    except jinja2.exceptions.TemplateError as error:
        return {"error": error.message}


def main():
    entries = []
    for name, cases in TEMPLATES.items():
        source = (HERE / f"{name}.jinja").read_text(encoding="utf-8")
        for case in cases:
            with_prompt = rendered(source, case, True)
            without = rendered(source, case, False)
            entry = {"template": name, "case": case, **with_prompt}
            # What stands without the prompt is mostly its beginning.
            if "text" in without and with_prompt.get("text", "").startswith(without["text"]):
                entry["generation_prompt"] = with_prompt["text"][len(without["text"]):]
            else:
                entry["without"] = without
            entries.append(entry)
    cases = {name: {"messages": messages, "variables": variables} for name, (messages, variables) in CASES.items()}
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    expected = {"versions": versions, "special": SPECIAL, "cases": cases, "rendered": entries}
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
