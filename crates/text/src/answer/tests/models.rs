//! Templates of all families, in their own words, and their special tokens.

use crate::answer::AnswerFormat;
use motet_protocol::TokenId;

/// A family: its name, the text by which its template is recognised, and its special tokens.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) template: &'static str,
    pub(super) special: &'static [&'static str],
}

/// The id of the first special token in the vocabulary of these tests, after the end token and
/// the bytes.
pub(super) const FIRST_SPECIAL: TokenId = 257;

impl Family {
    pub(super) fn format(&self) -> AnswerFormat {
        AnswerFormat::recognize(self.template, &|text| {
            let at = self.special.iter().position(|token| *token == text)?;
            Some(FIRST_SPECIAL + at as TokenId)
        })
    }
}

pub(super) fn family(name: &str) -> AnswerFormat {
    let family = FAMILIES.iter().find(|family| family.name == name);
    family.expect("the family is listed").format()
}

pub(super) const FAMILIES: [Family; 15] = [
    Family {
        name: "plain",
        template: "{{ message['role'] + message['content'] }}",
        special: &[],
    },
    Family {
        name: "qwen2.5",
        template: "{%- if tools %}<tool_call>\\n{\\\"name\\\": <function-name>}\\n</tool_call>",
        special: &["<|im_start|>"],
    },
    Family {
        name: "qwen3",
        template: "{% if tools %}<tool_call>{% endif %}{{ content.split('</think>') }}<think>",
        special: &["<|im_start|>"],
    },
    Family {
        name: "qwen3-coder",
        template: "{% if tools %}<tool_call>\\n<function=example>\\n<parameter=a>",
        special: &[],
    },
    Family {
        name: "llama3",
        template: "{% if tools %}ipython{% endif %}{{- '\", \"parameters\": ' }}",
        special: &["<|python_tag|>"],
    },
    Family {
        name: "mistral-nemo",
        template: "{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{ \"[TOOL_CALLS][\" }}",
        special: &["[TOOL_CALLS]"],
    },
    Family {
        name: "ministral-3",
        template: "{% if tools %}{{ '[TOOL_CALLS]' + name + '[ARGS]' }} [THINK] [/THINK]",
        special: &["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
    },
    Family {
        name: "granite-3.3",
        template: "{% if tools %}respond only with <|tool_call|> followed by a JSON list",
        special: &["<|tool_call|>"],
    },
    Family {
        name: "phi-4-mini",
        template: "{% if tools %}<|tool_call|>[]<|/tool_call|>",
        special: &["<|tool_call|>", "<|/tool_call|>"],
    },
    Family {
        name: "lfm2",
        template: "{% if tools %}<|tool_call_start|>[ ]<|tool_call_end|>{{ '</think>' }}",
        special: &["<|tool_call_start|>", "<|tool_call_end|>"],
    },
    Family {
        name: "functiongemma",
        template: "{% if tools %}<start_function_call>call:<escape><end_function_call>",
        special: &["<start_function_call>", "<end_function_call>", "<escape>"],
    },
    Family {
        name: "gemma4",
        template: "{% if tools %}<|tool_call>call:{<|\"|>}<tool_call|> <|channel>thought <channel|>",
        special: &[
            "<|tool_call>",
            "<tool_call|>",
            "<|\"|>",
            "<|channel>",
            "<channel|>",
        ],
    },
    Family {
        name: "gpt-oss",
        template: "{% if tools %}<|start|>assistant<|channel|>analysis<|message|>",
        special: &[
            "<|start|>",
            "<|channel|>",
            "<|message|>",
            "<|constrain|>",
            "<|end|>",
        ],
    },
    Family {
        name: "deepseek-r1",
        template: "{{ content.split('</think>')[-1] }}<think>\\n",
        special: &[],
    },
    Family {
        name: "seed",
        template: "{% if tools %}<tool_call>{% endif %}<seed:think></seed:think>",
        special: &["<seed:think>", "</seed:think>"],
    },
];
