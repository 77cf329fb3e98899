//! A wakeup channel without payload.
//!
//! The data is stored elsewhere, behind a lock; the sender notifies after it has stored it. In
//! the product the channel holds one wakeup, which stands for all that have not been received:
//! a further one is not needed. In model checks each wakeup is a message of loom's channel.

#[cfg(not(motet_loom))]
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
#[cfg(motet_loom)]
use {
    crossbeam_channel::never,
    loom::sync::mpsc::{Receiver, Sender, channel},
};

/// The sending end.
#[derive(Clone, Debug)]
pub struct WakeupSender(Sender<()>);

/// The receiving end.
#[derive(Debug)]
pub struct WakeupReceiver {
    receiver: Receiver<()>,
    /// A receiver for `select!`, which cannot wait for loom's.
    #[cfg(motet_loom)]
    never: crossbeam_channel::Receiver<()>,
}

/// Creates a wakeup channel.
#[cfg(not(motet_loom))]
#[must_use]
pub fn wakeup() -> (WakeupSender, WakeupReceiver) {
    let (sender, receiver) = bounded(1);
    (WakeupSender(sender), WakeupReceiver { receiver })
}

/// Creates a wakeup channel.
#[cfg(motet_loom)]
#[must_use]
pub fn wakeup() -> (WakeupSender, WakeupReceiver) {
    let (sender, receiver) = channel();
    let never = never();
    (WakeupSender(sender), WakeupReceiver { receiver, never })
}

impl WakeupSender {
    /// Sends a wakeup. Returns false if the receiver is gone.
    #[cfg(not(motet_loom))]
    pub fn notify(&self) -> bool {
        !matches!(self.0.try_send(()), Err(TrySendError::Disconnected(())))
    }

    /// Sends a wakeup. Returns false if the receiver is gone.
    #[cfg(motet_loom)]
    pub fn notify(&self) -> bool {
        self.0.send(()).is_ok()
    }
}

impl WakeupReceiver {
    /// Waits for a wakeup. Returns false if all senders are gone.
    pub fn wait(&self) -> bool {
        self.receiver.recv().is_ok()
    }

    /// Whether all senders are gone and all wakeups were received. This receives a pending
    /// wakeup.
    #[cfg(not(motet_loom))]
    pub fn is_closed(&self) -> bool {
        let received = self.receiver.try_recv();
        matches!(received, Err(crossbeam_channel::TryRecvError::Disconnected))
    }

    /// Whether all senders are gone.
    #[cfg(motet_loom)]
    pub fn is_closed(&self) -> bool {
        let received = self.receiver.try_recv();
        matches!(received, Err(std::sync::mpsc::TryRecvError::Disconnected))
    }

    /// Returns the receiver for `select!`.
    pub fn receiver(&self) -> &crossbeam_channel::Receiver<()> {
        #[cfg(not(motet_loom))]
        return &self.receiver;
        #[cfg(motet_loom)]
        return &self.never;
    }
}
