//! JSON schema: its keywords, and the walk over the schemas within a schema.
//!
//! | file | content |
//! |---|---|
//! | `keywords.rs` | the one table of keywords: a new keyword of JSON schema is a row of it |
//! | `walk.rs` | the one walk over schemas, and the one over all values |
//! | `closed.rs` | schemas whose objects have no members beside those that are named |
//! | `text_kind.rs` | whether the values of a member are texts |

#[cfg(feature = "grammar")]
pub(crate) mod closed;
#[cfg(feature = "grammar")]
pub(crate) mod keywords;
pub(crate) mod text_kind;
#[cfg(feature = "grammar")]
pub(crate) mod walk;
