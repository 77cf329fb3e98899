//! Counts the connections of each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::ApiError;

/// Rejected connections that are answered at the same time; further ones are closed unanswered.
const REJECTIONS_MAX: usize = 32;
/// Time for a rejected client to read its answer.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a rejected client may retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Bits of an IPv6 address that identify a site; its machines choose the rest.
const IPV6_SITE_BITS: u32 = 64;

/// Addresses that have connections.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// Most connections of one address.
    connections_max: u32,
    /// Connections of each address; addresses without any are removed.
    open: Mutex<HashMap<IpAddr, u32>>,
    rejection_permits: Arc<Semaphore>,
}

/// Counts one connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    addresses: Arc<Addresses>,
    from: IpAddr,
}

/// The address of a request's client, reduced to the part that identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer(IpAddr);

impl Peer {
    pub(crate) fn of(from: IpAddr) -> Self {
        Self(counted_prefix(from))
    }
}

impl Addresses {
    /// Creates counters with this limit for each address.
    pub(crate) fn new(connections_max: u32) -> Self {
        Self {
            connections_max,
            open: Mutex::default(),
            rejection_permits: Arc::new(Semaphore::new(REJECTIONS_MAX)),
        }
    }

    /// Counts a connection. Returns `None` if its address is at the limit.
    pub(crate) fn try_acquire(self: &Arc<Self>, from: IpAddr) -> Option<ConnectionGuard> {
        let from = counted_prefix(from);
        let mut open = self.locked();
        let count = open.entry(from).or_default();
        (*count < self.connections_max).then(|| {
            *count += 1;
            ConnectionGuard {
                addresses: Arc::clone(self),
                from,
            }
        })
    }

    /// Answers a client whose address has too many connections, unless too many such answers are
    /// being sent.
    pub(crate) fn reject(
        &self,
        mut socket: TcpStream,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let permit = Arc::clone(&self.rejection_permits)
            .try_acquire_owned()
            .ok()?;
        let answer = self.rejection();
        Some(async move {
            let answering = async {
                socket.write_all(answer.as_bytes()).await?;
                socket.shutdown().await?;
                // Closing a socket with unread bytes would discard the answer.
                let mut unread = [0; 4096];
                while socket.read(&mut unread).await? > 0 {}
                std::io::Result::Ok(())
            };
            // A client that is gone or never stops sending is ignored.
            timeout(REJECTION_TIMEOUT, answering).await.ok();
            drop(permit);
        })
    }

    /// The whole HTTP answer, since no request has been parsed yet.
    fn rejection(&self) -> String {
        let message = format!(
            "this address has {} connections open, which is as many as it may have",
            self.connections_max
        );
        let error = ApiError::busy(message, RETRY_AFTER);
        let body = serde_json::to_string(&error.body()).expect("its keys are strings");
        format!(
            "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n\
             retry-after: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            RETRY_AFTER.as_secs(),
            body.len()
        )
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.open
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.addresses.locked();
        if let Some(count) = open.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.from);
            }
        }
    }
}

/// The part of an address by which connections are counted.
fn counted_prefix(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << (u128::BITS - IPV6_SITE_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_address() {
        let addresses = Arc::new(Addresses::new(2));
        let try_acquire = |from: &str| addresses.try_acquire(from.parse().expect(from));
        let held = [try_acquire("10.0.0.1"), try_acquire("10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(try_acquire("10.0.0.1").is_none(), "a third");
        assert!(try_acquire("::ffff:10.0.0.1").is_none(), "the same address");
        assert!(try_acquire("10.0.0.2").is_some(), "another address");
        drop(held);
        assert!(try_acquire("10.0.0.1").is_some());
        // A site chooses the lower bits of its addresses.
        let held = [try_acquire("2001:db8::1"), try_acquire("2001:db8::ffff:2")];
        assert!(held.iter().all(Option::is_some));
        assert!(try_acquire("2001:db8::3").is_none());
        assert!(try_acquire("2001:db8:0:1::3").is_some());
        drop(held);
        assert!(addresses.locked().is_empty());
    }
}
