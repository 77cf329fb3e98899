"""LangChain's standard tests of chat models, through ChatAnthropic."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

IS_ORACLE = os.environ["SERVER_MODEL"] == "oracle"
# With the likeliest tokens a small model repeats a sentence until its answer has the greatest length.
SAMPLING = {"temperature": 0} if IS_ORACLE else {"temperature": 0.7, "seed": 1}


class TestChatAnthropic(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict:
        return {
            "base_url": os.environ["SERVER_URL"],
            "api_key": "none",
            "model": os.environ["SERVER_MODEL"],
            "max_tokens": 4000 if IS_ORACLE else 1000,
            # Fields that the client has no names for.
            "model_kwargs": {"extra_body": SAMPLING},
            "max_retries": 0,
            "timeout": 300,
        }

    @property
    def model_override_value(self) -> str:
        return os.environ["SERVER_MODEL"]

    @property
    def has_tool_choice(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True
