//! Remembers panics anywhere: a panic in an actor would be caught and would look like its end.

use std::cell::RefCell;
use std::sync::Once;

use crate::record::Record;

thread_local! {
    static PANIC_LOG: RefCell<PanicLog> = const { RefCell::new(PanicLog { record: None, panics: Vec::new() }) };
}

struct PanicLog {
    record: Option<Record>,
    panics: Vec<String>,
}

/// Remembers panics of this thread from now on, except requested ones.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if text.contains("(injected)") {
                return;
            }
            let is_ours = PANIC_LOG.with_borrow_mut(|panic_log| {
                let is_ours = panic_log.record.is_some();
                if let Some(record) = &panic_log.record {
                    record.log(format_args!("panic: {info}"));
                    panic_log.panics.push(info.to_string());
                }
                is_ours
            });
            if !is_ours {
                before(info);
            }
        }));
    });
}

/// Makes panics a part of this record.
pub(crate) fn remember(record: &Record) {
    PANIC_LOG.with_borrow_mut(|panic_log| panic_log.record = Some(record.clone()));
}

/// Returns and clears the panics, and the record that they are part of.
pub(crate) fn take() -> (Vec<String>, Option<Record>) {
    PANIC_LOG.with_borrow_mut(|panic_log| {
        (
            std::mem::take(&mut panic_log.panics),
            panic_log.record.take(),
        )
    })
}
