"""LangChain's standard tests of chat models, through ChatAnthropic."""

import os

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests


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
            "max_tokens": 4000,
            # A field that the client no longer has a name for.
            "model_kwargs": {"extra_body": {"temperature": 0}},
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
