"""LangChain's standard tests of chat models, through ChatOpenAI."""

import os

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

# Without it a small model repeats a sentence until its answer has the greatest length.
PENALTY = {} if os.environ["SERVER_MODEL"] == "oracle" else {"frequency_penalty": 1}


class TestChatOpenAI(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict:
        return {
            "base_url": f"{os.environ['SERVER_URL']}/v1",
            "api_key": "none",
            "model": os.environ["SERVER_MODEL"],
            "max_tokens": 1000,
            "temperature": 0,
            "max_retries": 0,
            "timeout": 300,
            "stream_usage": True,
            # The oracle makes as many calls as it may.
            "extra_body": {"parallel_tool_calls": False},
            **PENALTY,
        }

    @property
    def model_override_value(self) -> str:
        return os.environ["SERVER_MODEL"]

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False):
        model = self.chat_model_class(**self.chat_model_params)
        question = "What is a motet? " * 40
        model.invoke(question)
        if not stream:
            return model.invoke(question)
        parts = list(model.stream(question))
        whole = parts[0]
        for part in parts[1:]:
            whole += part
        return whole
