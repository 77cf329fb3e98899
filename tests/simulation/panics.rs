//! Panics, wherever they are: an actor's would be caught, and seem to be its end only.

use std::cell::RefCell;
use std::sync::Once;

use crate::record::Record;

thread_local! {
    static SEEN: RefCell<Seen> = const { RefCell::new(Seen { record: None, panics: Vec::new() }) };
}

struct Seen {
    record: Option<Record>,
    panics: Vec<String>,
}

/// From now on panics of this thread are remembered, but for those that were asked for.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if text.contains("(injected)") {
                return;
            }
            let is_ours = SEEN.with_borrow_mut(|seen| {
                let is_ours = seen.record.is_some();
                if let Some(record) = &seen.record {
                    record.say(format_args!("panic: {info}"));
                    seen.panics.push(info.to_string());
                }
                is_ours
            });
            if !is_ours {
                before(info);
            }
        }));
    });
}

/// Panics are part of this record.
pub(crate) fn remember(record: &Record) {
    SEEN.with_borrow_mut(|seen| seen.record = Some(record.clone()));
}

/// What was seen, which is then forgotten; and the record that it is part of.
pub(crate) fn take() -> (Vec<String>, Option<Record>) {
    SEEN.with_borrow_mut(|seen| (std::mem::take(&mut seen.panics), seen.record.take()))
}
