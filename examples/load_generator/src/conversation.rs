//! A conversation so far, in the form that the model gets.

use motet::TokenId;
use motet::request::Prompt;
use motet::text::Message;

/// Vocabulary size of the oracle: large enough to keep words apart, and small enough to
/// sort for each token that is sampled at a temperature.
pub(crate) const ORACLE_VOCAB_SIZE: usize = 4_096;
/// The oracle's end token.
pub(crate) const ORACLE_END: TokenId = 0;
/// Tokens that begin a speaker's part, as in a chat template.
const SYSTEM: TokenId = 1;
const USER: TokenId = 2;
const ASSISTANT: TokenId = 3;
/// The first token that stands for words.
const WORDS: TokenId = 4;

/// Begins a user's part where there is no chat template. A reply ends before it.
pub(crate) const USER_PART: &str = "\nGuest:";
/// Begins the model's part where there is no chat template.
const MODEL_PART: &str = "\nConcierge:";

/// The form in which a model gets conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Messages: the model has a chat template.
    Chat,
    /// One text, with the speakers' names: a base model without a chat template.
    Script,
    /// Tokens: the oracle, which has no tokenizer.
    Tokens,
}

/// A conversation so far, in the form that the model gets.
#[derive(Clone, Debug)]
pub(crate) enum Conversation {
    /// For a model with a tokenizer and a chat template.
    Chat(Vec<Message>),
    /// For a model with a tokenizer and without a chat template.
    Script(Vec<Message>),
    /// For the oracle, which has neither. Each word is one token.
    Tokens(Vec<TokenId>),
}

impl Conversation {
    /// Creates a conversation that holds only the system prompt.
    pub(crate) fn new(form: Form, system_prompt: &str) -> Self {
        let mut conversation = match form {
            Form::Chat => Conversation::Chat(Vec::new()),
            Form::Script => Conversation::Script(Vec::new()),
            Form::Tokens => Conversation::Tokens(Vec::new()),
        };
        if !system_prompt.is_empty() {
            match &mut conversation {
                Conversation::Chat(messages) | Conversation::Script(messages) => {
                    messages.push(Message::system(system_prompt));
                }
                Conversation::Tokens(tokens) => speak(tokens, SYSTEM, system_prompt),
            }
        }
        conversation
    }

    /// Appends a question of the user.
    pub(crate) fn ask(&mut self, question: &str) {
        match self {
            Conversation::Chat(messages) | Conversation::Script(messages) => {
                messages.push(Message::user(question));
            }
            Conversation::Tokens(tokens) => {
                speak(tokens, USER, question);
                tokens.push(ASSISTANT);
            }
        }
    }

    /// Drops everything except the system prompt.
    pub(crate) fn forget(&mut self) {
        match self {
            Conversation::Chat(messages) | Conversation::Script(messages) => {
                messages.retain(|message| message.role == "system");
            }
            Conversation::Tokens(tokens) => {
                let user = tokens.iter().position(|token| *token == USER);
                tokens.truncate(user.unwrap_or(tokens.len()));
            }
        }
    }

    /// The prompt for the model's next reply.
    pub(crate) fn prompt(&self) -> Prompt {
        match self {
            Conversation::Chat(messages) => Prompt::Chat(messages.clone().into()),
            Conversation::Script(messages) => Prompt::Text(script(messages)),
            Conversation::Tokens(tokens) => Prompt::Tokens(tokens.clone()),
        }
    }

    /// Appends a reply of the model.
    pub(crate) fn answer(&mut self, reply_text: &str, reply_tokens: &[TokenId]) {
        match self {
            Conversation::Chat(messages) | Conversation::Script(messages) => {
                messages.push(Message::assistant(reply_text));
            }
            Conversation::Tokens(tokens) => tokens.extend_from_slice(reply_tokens),
        }
    }
}

/// The messages as one text, which the model continues with its next reply.
fn script(messages: &[Message]) -> String {
    let part = |message: &Message| match message.role.as_str() {
        "system" => format!("{}\n", message.content),
        "user" => format!("{USER_PART} {}", message.content),
        _ => format!("{MODEL_PART}{}", message.content),
    };
    let mut text: String = messages.iter().map(part).collect();
    text += MODEL_PART;
    text
}

fn speak(tokens: &mut Vec<TokenId>, speaker: TokenId, text: &str) {
    tokens.push(speaker);
    tokens.extend(text.split_whitespace().map(word_token));
}

/// A token for a word: FNV-1a (Fowler, Noll, Vo) of its bytes.
fn word_token(word: &str) -> TokenId {
    let hash = word.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    WORDS + hash % (ORACLE_VOCAB_SIZE as TokenId - WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_continues_the_last() {
        let mut conversation = Conversation::new(Form::Tokens, "You are a stone.");
        conversation.ask("How old are you?");
        let Prompt::Tokens(first) = conversation.prompt() else {
            panic!("expected a prompt of tokens");
        };
        conversation.answer("", &[7, 8, 9]);
        conversation.ask("Why?");
        let Prompt::Tokens(second) = conversation.prompt() else {
            panic!("expected a prompt of tokens");
        };
        assert_eq!(first.len(), 1 + 4 + 1 + 4 + 1);
        assert_eq!(second[..first.len()], first);
        assert_eq!(second[first.len()..first.len() + 3], [7, 8, 9]);
        assert!(
            first
                .iter()
                .all(|token| (*token as usize) < ORACLE_VOCAB_SIZE)
        );
        assert!(!first.contains(&ORACLE_END));
    }

    #[test]
    fn the_system_prompt_is_not_forgotten() {
        for form in [Form::Chat, Form::Script, Form::Tokens] {
            let fresh = Conversation::new(form, "You are a stone.");
            let mut conversation = fresh.clone();
            conversation.ask("How old are you?");
            conversation.answer("", &[7, 8, 9]);
            conversation.forget();
            assert_eq!(conversation.prompt(), fresh.prompt());
        }
    }

    #[test]
    fn a_script_names_the_speakers() {
        let mut conversation = Conversation::new(Form::Script, "A hotel.");
        conversation.ask("Is it warm?");
        conversation.answer(" Yes.", &[1]);
        conversation.ask("Why?");
        let text = "A hotel.\n\nGuest: Is it warm?\nConcierge: Yes.\nGuest: Why?\nConcierge:";
        assert_eq!(conversation.prompt(), Prompt::Text(text.to_owned()));
    }

    #[test]
    fn chat_keeps_the_roles() {
        let mut conversation = Conversation::new(Form::Chat, "");
        conversation.ask("Hello?");
        conversation.answer("Hello.", &[1]);
        let Prompt::Chat(chat) = conversation.prompt() else {
            panic!("expected a prompt of messages");
        };
        let turns: Vec<_> = chat
            .messages
            .iter()
            .map(|m| (m.role.as_str(), m.content.as_str()))
            .collect();
        assert_eq!(turns, [("user", "Hello?"), ("assistant", "Hello.")]);
    }
}
