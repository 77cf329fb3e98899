//! Placeholder until the text branch lands.
use crate::TokenId;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct TextError;
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: String,
    pub content: String,
}
#[derive(Debug, Default)]
pub struct Certain {
    pub text: String,
    pub stopped: bool,
}
#[derive(Debug)]
pub struct TextOutput;
impl TextOutput {
    pub fn push(&mut self, _t: TokenId) -> Result<Certain, TextError> {
        Ok(Certain::default())
    }
    pub fn finish(&mut self) -> String {
        String::new()
    }
}
#[derive(Debug, Clone)]
pub struct TextCodec;
impl TextCodec {
    pub fn encode_prompt(&self, _: &str) -> Result<Vec<TokenId>, TextError> {
        Ok(vec![])
    }
    pub fn encode_chat(&self, _: &[Message]) -> Result<Vec<TokenId>, TextError> {
        Ok(vec![])
    }
    pub fn output(&self, _stops: &[String]) -> Result<TextOutput, TextError> {
        Ok(TextOutput)
    }
}
