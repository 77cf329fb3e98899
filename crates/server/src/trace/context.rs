//! The header `traceparent` of W3C's Trace Context.
//!
//! Level 1 of the recommendation: version 00, of which only the flag `sampled` is known. A header of
//! a later version is read as far as it begins like version 00.
//!
//! With feature `otel` too, headers are not read by `opentelemetry_sdk`'s `TraceContextPropagator`: it accepts
//! identifiers that are too short or have a sign, a header that ends with a dash, and the first of two headers,
//! and it allocates for each dash of a header.

use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries a trace context.
pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Bytes of a header of version 00.
const BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// A span's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// The trace; not 0.
    pub(super) trace: u128,
    /// The span; not 0.
    pub(super) span: u64,
    /// Whether the sender records the trace.
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// The client's span. `None` without the header, and for a header that is malformed or comes
    /// twice: such a header starts a new trace.
    pub(super) fn of_client(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(&TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(only), None) => Self::parse(only.as_bytes()),
            _ => None,
        }
    }

    /// A new trace that no caller records.
    pub(super) fn new_trace() -> Self {
        Self {
            trace: rand::random_range(1..=u128::MAX),
            span: rand::random_range(1..=u64::MAX),
            is_sampled: false,
        }
    }

    /// A new span of the same trace.
    pub(super) fn new_span(self) -> Self {
        Self {
            span: rand::random_range(1..=u64::MAX),
            ..self
        }
    }

    fn parse(header: &[u8]) -> Option<Self> {
        let (known, more) = header.split_at_checked(BYTES)?;
        let version = hexadecimal(&known[..2])?;
        let continues = match version {
            0 => more.is_empty(),
            0xff => return None,
            _ => more.is_empty() || more[0] == b'-',
        };
        if !continues || [2, 35, 52].iter().any(|at| known[*at] != b'-') {
            return None;
        }
        let trace = hexadecimal(&known[3..35])?;
        let span = u64::try_from(hexadecimal(&known[36..52])?).ok()?;
        let flags = u8::try_from(hexadecimal(&known[53..])?).ok()?;
        (trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            is_sampled: flags & SAMPLED != 0,
        })
    }

    /// The header's value.
    pub(crate) fn header(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("it is ASCII")
    }

    /// The trace, as logs name it.
    pub(crate) fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// A number of hexadecimal digits in lower case, at most 32.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::try_from(*value).expect("a value");
            headers.append(&TRACEPARENT, value);
        }
        headers
    }

    /// Cases of the recommendation and of its test suite.
    #[test]
    fn malformed_headers_are_ignored() {
        let valid = format!("00-{TRACE}-{SPAN}-01");
        for (header, is_sampled) in [
            (valid.clone(), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            // Flags that are not known.
            (format!("00-{TRACE}-{SPAN}-fe"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(true)),
            // Later versions may be longer.
            (format!("cc-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-what-comes"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("0g-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{}-01", SPAN.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{SPAN}-01", &TRACE[1..]), None),
            (format!("00-{TRACE}-{SPAN}0-01"), None),
            (format!("00-{TRACE}-{SPAN}-0"), None),
            (format!("00-{TRACE}-{SPAN}-0x"), None),
            (format!("00.{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}.{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}.01"), None),
            (format!("-00-{TRACE}-{SPAN}-01"), None),
            (String::new(), None),
        ] {
            let context = TraceContext::of_client(&headers(&[&header]));
            assert_eq!(
                context.map(|context| context.is_sampled),
                is_sampled,
                "{header}"
            );
            if let Some(context) = context {
                assert_eq!(context.trace_id(), TRACE);
                assert_eq!(format!("{:016x}", context.span), SPAN);
            }
        }
        let twice = headers(&[&valid, &valid]);
        assert_eq!(TraceContext::of_client(&twice), None, "which one is meant?");
        assert_eq!(TraceContext::of_client(&HeaderMap::new()), None);
    }

    #[test]
    fn sent_contexts_are_read_back() {
        let new = TraceContext::new_trace();
        for context in [new, new.new_span()] {
            for is_sampled in [false, true] {
                let sent = TraceContext {
                    is_sampled,
                    ..context
                };
                assert_eq!(TraceContext::parse(sent.header().as_bytes()), Some(sent));
            }
        }
        assert_eq!(new.new_span().trace, new.trace);
        assert_ne!(new.new_span().span, new.span);
        assert_ne!(new.trace, TraceContext::new_trace().trace);
    }
}
