//! The predicted answer of a chat completion.

use schemars::JsonSchema;
use serde::Deserialize;

use super::message::Content;
use crate::error::ApiError;

/// The text that is expected as the answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Prediction {
    #[serde(rename = "type")]
    #[schemars(with = "String", extend("const" = "content"))]
    kind: Kind,
    content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Content,
}

impl Prediction {
    /// The text of its parts.
    pub(super) fn text(self) -> Result<String, ApiError> {
        let Kind::Content = self.kind;
        self.content.text("prediction.content")
    }
}
