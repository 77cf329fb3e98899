//! A channel that says that there is something, and no more.
//!
//! What there is lies elsewhere, behind a lock; the bell is rung after it was put there. In
//! the product the bell holds one ring, which stands for all that nobody has heard: a ring
//! that finds another there is not needed. In model checks each ring is a message of loom's.

#[cfg(not(motet_loom))]
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
#[cfg(motet_loom)]
use {
    crossbeam_channel::never,
    loom::sync::mpsc::{Receiver, Sender, channel},
};

/// The end that rings.
#[derive(Clone, Debug)]
pub struct WakeupSender(Sender<()>);

/// The end that hears.
#[derive(Debug)]
pub struct WakeupReceiver {
    receiver: Receiver<()>,
    /// What `select!` waits for instead, which loom does not know.
    #[cfg(motet_loom)]
    never: crossbeam_channel::Receiver<()>,
}

/// A bell, and what rings it.
#[cfg(not(motet_loom))]
#[must_use]
pub fn wakeup() -> (WakeupSender, WakeupReceiver) {
    let (sender, receiver) = bounded(1);
    (WakeupSender(sender), WakeupReceiver { receiver })
}

/// A bell, and what rings it.
#[cfg(motet_loom)]
#[must_use]
pub fn wakeup() -> (WakeupSender, WakeupReceiver) {
    let (sender, receiver) = channel();
    let never = never();
    (WakeupSender(sender), WakeupReceiver { receiver, never })
}

impl WakeupSender {
    /// Rings. False when nobody will hear it.
    #[cfg(not(motet_loom))]
    pub fn notify(&self) -> bool {
        !matches!(self.0.try_send(()), Err(TrySendError::Disconnected(())))
    }

    /// Rings. False when nobody will hear it.
    #[cfg(motet_loom)]
    pub fn notify(&self) -> bool {
        self.0.send(()).is_ok()
    }
}

impl WakeupReceiver {
    /// Waits for a ring. False when nobody will ring any more.
    pub fn wait(&self) -> bool {
        self.receiver.recv().is_ok()
    }

    /// Whether nobody will ring any more, and all rings were heard. A ring that is there is
    /// heard by this.
    #[cfg(not(motet_loom))]
    pub fn is_closed(&self) -> bool {
        let received = self.receiver.try_recv();
        matches!(received, Err(crossbeam_channel::TryRecvError::Disconnected))
    }

    /// Whether nobody will ring any more.
    #[cfg(motet_loom)]
    pub fn is_closed(&self) -> bool {
        let received = self.receiver.try_recv();
        matches!(received, Err(std::sync::mpsc::TryRecvError::Disconnected))
    }

    /// The rings, for `select!`.
    pub fn receiver(&self) -> &crossbeam_channel::Receiver<()> {
        #[cfg(not(motet_loom))]
        return &self.receiver;
        #[cfg(motet_loom)]
        return &self.never;
    }
}
