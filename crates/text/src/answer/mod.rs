//! The parts of a model's answer: reasoning, text, and calls of tools.
//!
//! ```text
//!  request   Tools::new ── typed error
//!            AnswerFormat::grammar(tools, choice) ─ GrammarSource ─▶ the request's grammar
//!  stream    text ─▶ AnswerParser::push ─▶ Reasoning, Text, CallStart, CallArguments, CallEnd
//! ```
//!
//! Each family of models writes calls in a form of its own. An [`AnswerFormat`] is read from the
//! chat template and the vocabulary ([`TextCodec::answer_format`](crate::TextCodec::answer_format)).
//!
//! | family | form |
//! |---|---|
//! | Qwen, Hermes, Granite 4 | `<tool_call>{"name": …, "arguments": …}</tool_call>` |
//! | Qwen3-Coder, Qwen3.5 | `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>` |
//! | Llama 3 | `{"name": …, "parameters": …}`, with or without `<\|python_tag\|>` |
//! | Mistral | `[TOOL_CALLS][{…}]`, or `[TOOL_CALLS]name[ARGS]{…}` |
//! | Granite 3, Phi-4-mini | `<\|tool_call\|>[{…}]` |
//! | LFM2 | `<\|tool_call_start\|>[name(key="value")]<\|tool_call_end\|>` |
//! | FunctionGemma | `<start_function_call>call:name{key:<escape>value<escape>}<end_function_call>` |
//! | Gemma 4 | the same between `<\|tool_call>` and `<tool_call\|>`, strings between `<\|"\|>` |
//! | gpt-oss | messages on channels: `analysis`, `commentary to=functions.name`, `final` |
//! | any other | `{"name": …, "arguments": …}` on a line of its own, or in a fenced block |
//!
//! A template that knows no tools does not tell the model about them:
//! [`AnswerFormat::instructions`] is the text that does.
//!
//! **A call of a tool that was not offered is text.** A client receives only calls that it can
//! answer, and reads the rest as the model wrote it. The same holds for a call that does not
//! parse. An answer that must contain a call, or whose tools are strict, has a
//! [grammar](AnswerFormat::grammar) made of the tools' schemas. Its calls always parse.
//!
//! | file | content |
//! |---|---|
//! | `tools.rs` | tools, the choice among them, their errors |
//! | `format.rs` | recognises a model's format |
//! | `parts.rs` | the parts of an answer |
//! | `parser.rs` | the parser: text, reasoning, beginnings of calls |
//! | `harmony.rs` | the parser of messages on channels |
//! | `calls/` | readers of single calls, one for each form |
//! | `marks.rs` | finds marks in text that arrives in pieces |
//! | `constrained.rs` | the grammar of an answer |
//! | `instructions.rs` | tools as text, for templates that know none |

mod calls;
#[cfg(feature = "grammar")]
mod constrained;
mod format;
mod harmony;
mod instructions;
mod marks;
mod parser;
mod parts;
#[cfg(test)]
mod tests;
mod tools;

pub use format::{AnswerFormat, ReasoningMarks, ReasoningStart};
pub use parser::AnswerParser;
pub use parts::AnswerPart;
pub use tools::{Tool, ToolChoice, ToolError, ToolPart, Tools};
