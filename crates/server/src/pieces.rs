//! Answers that are written piece by piece, from what they are made of.
//!
//! The JSON of log probabilities is ten times as long as the numbers, and an answer may hold
//! megabytes of text. A value that may be long is [`Deferred`]: its JSON is made where the connection
//! has space for it, [`PIECE_BYTES`] at a time. An unread answer then costs no more than
//! its parts.
//!
//! A value is serialized at once, with a random mark in the place of each deferred part. The marks
//! are then replaced, each when it is reached.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::iter;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use hyper::body::{Frame, SizeHint};
use memchr::memmem;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

/// Bytes that are made at a time. Larger pieces save little, and a connection holds one.
const PIECE_BYTES: usize = 16 << 10;

/// The JSON of a value, in order.
pub(crate) type Pieces = Box<dyn Iterator<Item = Bytes> + Send>;

type Source = Arc<dyn Fn() -> Pieces + Send + Sync>;

/// A value of type `T` whose JSON is made when it is written. Clones share what it is made of.
pub(crate) struct Deferred<T: ?Sized> {
    source: Source,
    of: PhantomData<fn() -> Box<T>>,
}

/// Text that is shared, and written in pieces where it is long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(Arc<str>);

thread_local! {
    /// The deferred parts of the value that this thread serializes, if it does.
    static SKELETON: RefCell<Option<Skeleton>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Skeleton {
    /// Stands for a deferred part. It is random, so that no text of a request holds it.
    mark: Option<String>,
    deferred: Vec<Source>,
}

impl Skeleton {
    fn defer(&mut self, source: &Source) -> String {
        self.deferred.push(Arc::clone(source));
        let mark = self.mark.get_or_insert_with(|| {
            let random: u128 = rand::random();
            format!("{random:032x}")
        });
        mark.clone()
    }
}

impl<T: Serialize> Deferred<T> {
    /// A value as JSON, which is the most compact form of many small parts.
    pub(crate) fn json(value: &T) -> (Self, usize) {
        let json = whole(value);
        let bytes = json.len();
        (Self::of(move || Box::new(iter::once(json.clone()))), bytes)
    }
}

impl<T> Deferred<T> {
    fn of(source: impl Fn() -> Pieces + Send + Sync + 'static) -> Self {
        Self {
            source: Arc::new(source),
            of: PhantomData,
        }
    }

    /// A value that is shared.
    pub(crate) fn shared<V: Serialize + Send + Sync + 'static>(value: Arc<V>) -> Self {
        Self::of(move || pieces(&*value))
    }

    /// The same JSON, as that of another type.
    pub(crate) fn of_type<U>(self) -> Deferred<U> {
        Deferred {
            source: self.source,
            of: PhantomData,
        }
    }

    /// Its JSON.
    pub(crate) fn pieces(&self) -> Pieces {
        (self.source)()
    }
}

impl<T> Deferred<Vec<T>> {
    /// A list, whose elements are made when they are written.
    pub(crate) fn list<I>(elements: impl Fn() -> I + Send + Sync + 'static) -> Self
    where
        I: Iterator<Item: Serialize> + Send + 'static,
    {
        Self::of(move || list_pieces(elements()))
    }

    /// A list of `count` elements, which are made by their index when they are written.
    pub(crate) fn indexed<U: Serialize + 'static>(
        count: usize,
        element: impl Fn(usize) -> U + Send + Sync + 'static,
    ) -> Self {
        let element = Arc::new(element);
        Self::list(move || {
            let element = Arc::clone(&element);
            (0..count).map(move |at| element(at))
        })
    }
}

impl<T: ?Sized> Clone for Deferred<T> {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            of: PhantomData,
        }
    }
}

impl<T: ?Sized> fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deferred")
    }
}

impl<T: ?Sized> Serialize for Deferred<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(&self.source, serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Deferred<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl Text {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.len() <= PIECE_BYTES {
            return serializer.serialize_str(self);
        }
        let text = Arc::clone(&self.0);
        let source: Source = Arc::new(move || text_pieces(Arc::clone(&text)));
        serialize(&source, serializer)
    }
}

impl JsonSchema for Text {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Serializes a mark in the place of a deferred part; outside of [`pieces`], the part itself.
fn serialize<S: Serializer>(source: &Source, serializer: S) -> Result<S::Ok, S::Error> {
    let mark = SKELETON.with_borrow_mut(|skeleton| {
        let skeleton = skeleton.as_mut()?;
        Some(skeleton.defer(source))
    });
    if let Some(mark) = mark {
        return serializer.serialize_str(&mark);
    }
    let json = joined(source());
    let value: serde_json::Value = serde_json::from_slice(&json).expect("it was written as JSON");
    value.serialize(serializer)
}

/// The JSON of a value, the deferred parts of which are made when they are reached.
pub(crate) fn pieces(value: &impl Serialize) -> Pieces {
    // A value that is serialized within another's serialization has parts of its own.
    let outer = SKELETON.replace(Some(Skeleton::default()));
    let json = serde_json::to_vec(value).expect("its keys are strings");
    let skeleton = SKELETON.replace(outer).unwrap_or_default();
    let json = Bytes::from(json);
    let Some(mark) = skeleton.mark else {
        return Box::new(iter::once(json));
    };
    let mark = format!("\"{mark}\"");
    let places: Vec<usize> = memmem::find_iter(&json, &mark).collect();
    let mut start = 0;
    let mut parts = Vec::with_capacity(places.len());
    for (at, source) in places.into_iter().zip(skeleton.deferred) {
        parts.push((json.slice(start..at), source));
        start = at + mark.len();
    }
    let rest = json.slice(start..);
    let parts = parts.into_iter();
    let parts = parts.flat_map(|(before, source)| iter::once(before).chain(source()));
    Box::new(parts.chain(iter::once(rest)))
}

/// The whole JSON of a value.
pub(crate) fn whole(value: &impl Serialize) -> Bytes {
    joined(pieces(value))
}

fn joined(mut pieces: Pieces) -> Bytes {
    let first = pieces.next().unwrap_or_default();
    let Some(second) = pieces.next() else {
        return first;
    };
    let mut all = [&*first, &*second].concat();
    for piece in pieces {
        all.extend_from_slice(&piece);
    }
    all.into()
}

fn list_pieces<I>(elements: I) -> Pieces
where
    I: Iterator<Item: Serialize> + Send + 'static,
{
    let elements = elements.enumerate().flat_map(|(number, element)| {
        let comma = (number > 0).then(|| Bytes::from_static(b","));
        comma.into_iter().chain(pieces(&element))
    });
    let [begin, end] = [b"[", b"]"].map(|bracket| iter::once(Bytes::from_static(bracket)));
    Box::new(begin.chain(elements).chain(end))
}

/// The JSON of a text, escaped in pieces.
fn text_pieces(text: Arc<str>) -> Pieces {
    let mut start = 0;
    let escaped = iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let end = rest.ceil_char_boundary(PIECE_BYTES);
        start += end;
        let json = serde_json::to_vec(&rest[..end]).expect("a text is JSON");
        let length = json.len();
        // Without the quotes around it.
        Some(Bytes::from(json).slice(1..length - 1))
    });
    let quote = || iter::once(Bytes::from_static(b"\""));
    Box::new(quote().chain(escaped).chain(quote()))
}

/// Joins short pieces, so that each write has some length.
pub(crate) fn coalesced(mut pieces: Pieces) -> Pieces {
    Box::new(iter::from_fn(move || {
        let mut joined = Vec::new();
        for piece in pieces.by_ref() {
            if joined.is_empty() && piece.len() >= PIECE_BYTES {
                return Some(piece);
            }
            joined.extend_from_slice(&piece);
            if joined.len() >= PIECE_BYTES {
                break;
            }
        }
        (!joined.is_empty()).then(|| joined.into())
    }))
}

/// An answer in JSON. `kept` is dropped when its body has been sent, or with the connection.
pub(crate) fn json_response(pieces: Pieces, kept: impl Send + 'static) -> Response {
    let mut pieces = coalesced(pieces);
    let first = pieces.next().unwrap_or_default();
    let body = match pieces.next() {
        None => Body::from(first),
        Some(second) => {
            let pieces = [first, second].into_iter().chain(pieces);
            Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
        }
    };
    let body = Body::new(KeptBody { body, _kept: kept });
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A body, and what is kept until it is sent.
struct KeptBody<K> {
    body: Body,
    _kept: K,
}

// Nothing is pinned in it: a `Body` is a box.
impl<K> Unpin for KeptBody<K> {}

impl<K: Send + 'static> HttpBody for KeptBody<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Serialize)]
    struct Outer {
        text: Text,
        list: Deferred<Vec<Inner>>,
        end: u8,
    }

    #[derive(Serialize)]
    struct Inner {
        numbers: Deferred<Vec<usize>>,
    }

    fn outer(text: &str) -> Outer {
        let inner = |count: usize| Inner {
            numbers: Deferred::list(move || 0..count),
        };
        Outer {
            text: text.into(),
            list: Deferred::list(move || [0, 1, 3].into_iter().map(inner)),
            end: 7,
        }
    }

    #[test]
    fn pieces_join_to_the_whole() {
        for text in ["", "a \"quote\"\n", &"é\u{0}\"中".repeat(PIECE_BYTES)] {
            let value = outer(text);
            let expected = json!({
                "text": text, "end": 7,
                "list": [{"numbers": []}, {"numbers": [0]}, {"numbers": [0, 1, 2]}],
            });
            let joined: Value = serde_json::from_slice(&whole(&value)).expect("JSON");
            assert_eq!(joined, expected);
            assert_eq!(serde_json::to_value(&value).expect("JSON"), expected);
        }
    }

    #[test]
    fn pieces_are_made_when_they_are_reached() {
        let value: Deferred<Vec<usize>> = Deferred::list(|| {
            let elements = 0..usize::MAX;
            elements.inspect(|number| assert!(*number < PIECE_BYTES, "no piece asked for it"))
        });
        let mut pieces = coalesced(pieces(&value));
        let first = pieces.next().expect("more");
        assert!((PIECE_BYTES..2 * PIECE_BYTES).contains(&first.len()));
        let long: Text = "x".repeat(10 * PIECE_BYTES).into();
        let longest = super::pieces(&long).map(|piece| piece.len()).max();
        assert!(longest <= Some(PIECE_BYTES + 4), "{longest:?}");
    }
}
