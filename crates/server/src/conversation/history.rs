//! Results in the messages of a conversation.

use motet::chat::History;
use motet::text::Message;

use crate::error::ApiError;

/// Makes a message the result of the call with this id, as templates read it.
///
/// # Errors
///
/// An id that is missing, or that no earlier call has, is an error, which names `field`.
pub(crate) fn add_result(
    history: &History,
    message: &mut Message,
    id: Option<&str>,
    field: &str,
) -> Result<(), ApiError> {
    if id.is_some_and(|id| history.add_result(message, id)) {
        return Ok(());
    }
    let found = id.map_or("missing".to_owned(), |id| format!("{id:?}"));
    let expected = "expected the id of a call in an earlier message";
    Err(ApiError::field(
        field,
        format!("`{field}` is {found}; {expected}"),
    ))
}
