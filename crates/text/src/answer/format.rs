//! Recognises how a model writes calls and reasoning.

use std::sync::Arc;

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use motet_protocol::TokenId;

/// How a model writes calls and reasoning. Cheap to clone.
///
/// It is recognised by the marks in the chat template; the vocabulary says which of them are
/// special tokens. A model without a template, or with one that knows no marks, writes calls as
/// plain JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerFormat(Arc<Format>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) syntax: Syntax,
    pub(super) reasoning: Option<Reasoning>,
    knows_tools: bool,
}

/// How calls are written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Within marks, or bare on a line of their own.
    Marked(Marked),
    /// In messages on channels.
    Harmony(Box<HarmonyMarks>),
}

/// Calls within marks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Marked {
    /// The marks that calls are read from. The first is the one that a grammar writes, unless
    /// calls are bare.
    pub(super) pairs: Vec<MarkPair>,
    /// Whether a line that begins with a call is one without any mark.
    pub(super) is_bare_read: bool,
    /// Whether a grammar writes calls without marks.
    pub(super) is_bare_written: bool,
    /// The form in which a grammar writes calls.
    pub(super) form: Form,
    /// The mark between a name and its arguments, of [`Form::Named`].
    pub(super) arguments: Mark,
}

/// A form in which a grammar writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `{"name": …, "arguments": …}`, each within marks of its own.
    Object,
    /// `{"name": …, "parameters": …}`.
    ObjectOfParameters,
    /// `[{"name": …, "arguments": …}, …]` within one pair of marks.
    List,
    /// `name[ARGS]{…}`, each after a mark of its own.
    Named,
}

/// The marks around a call. Without a closing mark, the call ends where its own form does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MarkPair {
    pub(super) open: Mark,
    pub(super) close: Option<Mark>,
}

/// A text that structures an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) text: String,
    /// The special token that it is, or that it begins with.
    pub(super) token: Option<TokenId>,
    /// Bytes of that token's text.
    pub(super) token_bytes: usize,
}

impl Mark {
    fn new(text: &str, special: &dyn Fn(&str) -> Option<TokenId>) -> Self {
        let whole = special(text).map(|token| (token, text.len()));
        // Gemma 4 opens its reasoning with a token and a word.
        let first = || {
            let bytes = text.find('>')? + 1;
            Some((special(&text[..bytes])?, bytes))
        };
        let found = whole.or_else(first);
        Self {
            text: text.to_owned(),
            token: found.map(|(token, _)| token),
            token_bytes: found.map_or(0, |(_, bytes)| bytes),
        }
    }

    /// A mark that is no token.
    fn plain(text: &str) -> Self {
        Self::new(text, &|_| None)
    }
}

/// The marks of gpt-oss.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HarmonyMarks {
    pub(super) start: Mark,
    pub(super) channel: Mark,
    pub(super) message: Mark,
    pub(super) constrain: Mark,
    pub(super) end: Mark,
}

/// The marks around reasoning.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reasoning {
    pub(super) open: Mark,
    pub(super) close: Mark,
    public: ReasoningMarks,
}

/// The text around a model's reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// The text that opens it: `<think>`. The chat template may write it itself.
    pub open: String,
    /// The text that closes it: `</think>`.
    pub close: String,
    /// The text that ends it cleanly anywhere within it, for a model whose reasoning has become
    /// too long. It contains `close`, and white space that models write beside it.
    pub ending: String,
    /// Whether the model reasons before its answer or not at all: a mark that opens reasoning after
    /// other text, or after an earlier reasoning, is text.
    pub opens_once: bool,
}

/// Whether an answer begins with reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The answer has none: the model does not reason, or the prompt has closed it already.
    #[default]
    Absent,
    /// The model may open it.
    Possible,
    /// The prompt has opened it.
    Open,
}

/// Marks of reasoning: what opens it, what closes it, and white space beside the latter.
const REASONING: [(&str, &str, &str, &str); 4] = [
    ("<think>", "</think>", "\n", "\n\n"),
    ("[THINK]", "[/THINK]", "", ""),
    ("<seed:think>", "</seed:think>", "", ""),
    ("<|channel>thought", "<channel|>", "\n", ""),
];

/// Marks of calls, by which a template is recognised. A template that contains several has the
/// format of the first.
const MARKED: [(&str, Option<&str>, Form); 6] = [
    ("<|tool_call_start|>", Some("<|tool_call_end|>"), Form::List),
    (
        "<start_function_call>",
        Some("<end_function_call>"),
        Form::Object,
    ),
    ("<|tool_call>", Some("<tool_call|>"), Form::Object),
    ("<tool_call>", Some("</tool_call>"), Form::Object),
    ("[TOOL_CALLS]", None, Form::List),
    ("<|tool_call|>", Some("<|/tool_call|>"), Form::List),
];

/// Fenced blocks in which models write calls that no template taught them.
const FENCES: [&str; 3] = ["```json\n", "```tool_call\n", "```tool_code\n"];

impl AnswerFormat {
    /// The format of a model with this template and vocabulary.
    #[must_use]
    pub fn new(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        let source = template.map_or("", ChatTemplate::source);
        Self::recognize(source, &|text| {
            let token = tokenizer.token_id(text)?;
            tokenizer.is_special(token).then_some(token)
        })
    }

    /// The format by a template's text; `special` is the special token of a text, if it is one.
    pub(super) fn recognize(source: &str, special: &dyn Fn(&str) -> Option<TokenId>) -> Self {
        let mark = |text: &str| Mark::new(text, special);
        let is_harmony = |text: &&str| source.contains(*text) && special(text).is_some();
        if ["<|start|>", "<|channel|>", "<|message|>"]
            .iter()
            .all(is_harmony)
        {
            return Self(Arc::new(harmony(mark)));
        }
        let reasoning = REASONING
            .iter()
            .find(|(open, close, ..)| source.contains(open) || source.contains(close))
            .map(|(open, close, before, after)| Reasoning {
                open: mark(open),
                close: mark(close),
                public: ReasoningMarks {
                    open: (*open).to_owned(),
                    close: (*close).to_owned(),
                    ending: format!("{before}{close}{after}"),
                    opens_once: true,
                },
            });
        Self(Arc::new(Format {
            syntax: Syntax::Marked(marked(source, mark)),
            reasoning,
            knows_tools: source.contains("tools"),
        }))
    }

    /// The text around the model's reasoning, if its template knows any.
    #[must_use]
    pub fn reasoning_marks(&self) -> Option<&ReasoningMarks> {
        self.0.reasoning.as_ref().map(|marks| &marks.public)
    }

    /// Whether an answer to a prompt that ends so begins with reasoning.
    #[must_use]
    pub fn reasoning_start(&self, prompt_end: &str) -> ReasoningStart {
        let Some(marks) = self.reasoning_marks() else {
            return ReasoningStart::Absent;
        };
        let end = prompt_end.trim_end();
        if end.ends_with(&marks.open) {
            ReasoningStart::Open
        } else if end.ends_with(&marks.close) && !self.is_harmony() {
            ReasoningStart::Absent
        } else {
            ReasoningStart::Possible
        }
    }

    /// The end of a prompt that goes on with an answer, as [`parser`](Self::parser) and
    /// [`reasoning_start`](Self::reasoning_start) read it. `begun` is the assistant's turn so far.
    #[must_use]
    pub fn continued_end(&self, begun: &str) -> String {
        let Some(marks) = self.reasoning_marks().filter(|_| !self.is_harmony()) else {
            return begun.to_owned();
        };
        let (open, close) = (begun.rfind(&marks.open), begun.rfind(&marks.close));
        let is_open = open.is_some_and(|open| close.is_none_or(|close| close < open));
        // Behind text that is no reasoning, none begins.
        let mark = if is_open { &marks.open } else { &marks.close };
        mark.clone()
    }

    /// Whether the parser needs special tokens in the answer's text: set
    /// `Request::special_tokens_in_text` for it.
    #[must_use]
    pub fn shows_special_tokens(&self) -> bool {
        let is_special = |mark: &Mark| mark.token.is_some();
        let in_calls = match &self.0.syntax {
            Syntax::Harmony(_) => true,
            Syntax::Marked(marked) => marked
                .pairs
                .iter()
                .any(|pair| is_special(&pair.open) || pair.close.as_ref().is_some_and(is_special)),
        };
        let in_reasoning = self
            .0
            .reasoning
            .as_ref()
            .is_some_and(|marks| is_special(&marks.open) || is_special(&marks.close));
        in_calls || in_reasoning
    }

    /// Whether the chat template writes the variable `tools` into the prompt. If not,
    /// [`instructions`](Self::instructions) are needed.
    #[must_use]
    pub fn template_knows_tools(&self) -> bool {
        self.0.knows_tools
    }

    pub(super) fn format(&self) -> &Format {
        &self.0
    }

    pub(super) fn shared(&self) -> Arc<Format> {
        Arc::clone(&self.0)
    }

    fn is_harmony(&self) -> bool {
        matches!(self.0.syntax, Syntax::Harmony(_))
    }
}

fn harmony(mark: impl Fn(&str) -> Mark) -> Format {
    let marks = HarmonyMarks {
        start: mark("<|start|>"),
        channel: mark("<|channel|>"),
        message: mark("<|message|>"),
        constrain: mark("<|constrain|>"),
        end: mark("<|end|>"),
    };
    let open = "<|channel|>analysis<|message|>";
    Format {
        syntax: Syntax::Harmony(Box::new(marks)),
        reasoning: Some(Reasoning {
            open: mark(open),
            close: mark("<|end|>"),
            public: ReasoningMarks {
                open: open.to_owned(),
                close: "<|end|>".to_owned(),
                ending: "<|end|><|start|>assistant".to_owned(),
                opens_once: false,
            },
        }),
        knows_tools: true,
    }
}

/// Fenced blocks as marks.
fn fences() -> impl Iterator<Item = MarkPair> {
    FENCES.iter().map(|open| MarkPair {
        open: Mark::plain(open),
        close: Some(Mark::plain("```")),
    })
}

fn marked(source: &str, mark: impl Fn(&str) -> Mark) -> Marked {
    let found = MARKED.iter().find(|(open, ..)| source.contains(open));
    if let Some((open, close, form)) = found {
        // Granite 3 ends such a list with its turn.
        let close = close.filter(|close| *form != Form::List || source.contains(*close));
        let is_named = *open == "[TOOL_CALLS]" && source.contains("[ARGS]");
        let own = MarkPair {
            open: mark(open),
            close: close.map(&mark),
        };
        // Qwen2.5-Coder often forgets its marks. A list's brackets may be a mark's.
        let is_bare_read = *form == Form::Object;
        return Marked {
            pairs: std::iter::once(own)
                .chain(fences().filter(|_| is_bare_read))
                .collect(),
            is_bare_read,
            is_bare_written: false,
            form: if is_named { Form::Named } else { *form },
            arguments: mark("[ARGS]"),
        };
    }
    let is_llama = source.contains("<|python_tag|>")
        || source.contains("\"parameters\": ") && source.contains("ipython");
    let python_tag = is_llama.then(|| MarkPair {
        open: mark("<|python_tag|>"),
        close: None,
    });
    Marked {
        pairs: python_tag.into_iter().chain(fences()).collect(),
        is_bare_read: true,
        is_bare_written: true,
        form: if is_llama {
            Form::ObjectOfParameters
        } else {
            Form::Object
        },
        arguments: mark("[ARGS]"),
    }
}
