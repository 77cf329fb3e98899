//! Callers that await the cache's answer to a command.

use std::collections::BTreeMap;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::mailbox::CacheCommand;
use motet_core::cache::{self, CacheError};
use motet_core::scheduler::Event;
use motet_protocol::PinId;

/// Commands that the cache has not answered. The engine bounds how many there may be.
#[derive(Default)]
pub(super) struct CacheCommands {
    pending: BTreeMap<u64, PendingCommand>,
    last_command_id: u64,
}

struct PendingCommand {
    reply: oneshot::Sender<Result<(), CacheError>>,
    /// The pin that the command creates, if any.
    pin: Option<PinId>,
    /// Released with the answer.
    _permit: Option<OwnedSemaphorePermit>,
}

impl CacheCommands {
    /// Registers a command, and returns the event for the core.
    pub(super) fn register(&mut self, cache_command: CacheCommand) -> Event {
        self.last_command_id += 1;
        let pin = match &cache_command.message {
            cache::Message::Pin(pin) => Some(pin.pin),
            _ => None,
        };
        let pending = PendingCommand {
            reply: cache_command.reply,
            pin,
            _permit: cache_command.permit,
        };
        self.pending.insert(self.last_command_id, pending);
        Event::CacheCommand {
            command_id: self.last_command_id,
            message: cache_command.message,
        }
    }

    /// Answers a command. Returns the pin that it has created for a caller that is gone: no
    /// other part knows the pin's id.
    pub(super) fn answer(
        &mut self,
        command_id: u64,
        result: Result<(), CacheError>,
    ) -> Option<PinId> {
        let pending = self.pending.remove(&command_id);
        let pending = pending.expect("a command id is used once");
        match pending.reply.send(result) {
            Err(Ok(())) => pending.pin,
            _ => None,
        }
    }

    /// Fails all commands: a caller that is still there may try again.
    pub(super) fn fail_all(&mut self) {
        for pending in std::mem::take(&mut self.pending).into_values() {
            // The caller may have gone.
            pending.reply.send(Err(CacheError::Lost)).ok();
        }
    }

    /// Drops all commands: waiting callers see their channel closed.
    pub(super) fn drop_all(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_core::cache::{Pin, PrefixKey};

    fn pin(pin: PinId, reply: oneshot::Sender<Result<(), CacheError>>) -> CacheCommand {
        CacheCommand {
            message: cache::Message::Pin(Pin {
                pin,
                key: PrefixKey::default(),
                tokens: vec![1].into(),
                time_to_live: None,
            }),
            reply,
            permit: None,
        }
    }

    #[test]
    fn a_pin_without_a_caller_is_returned() {
        for is_present in [true, false] {
            let mut commands = CacheCommands::default();
            let (reply, caller) = oneshot::channel();
            let caller = is_present.then_some(caller);
            let event = commands.register(pin(PinId(3), reply));
            let Event::CacheCommand { command_id, .. } = event else {
                panic!("another event")
            };
            let unwanted = commands.answer(command_id, Ok(()));
            assert_eq!(unwanted, (!is_present).then_some(PinId(3)));
            drop(caller);
        }
    }

    #[test]
    fn a_lost_command_fails() {
        let mut commands = CacheCommands::default();
        let (reply, mut caller) = oneshot::channel();
        commands.register(pin(PinId(1), reply));
        commands.fail_all();
        assert!(matches!(caller.try_recv(), Ok(Err(CacheError::Lost))));
    }
}
