//! Accepts connections, limits each of them, and closes them at the shutdown.
//!
//! | limit | against |
//! |---|---|
//! | number of connections | running out of descriptors |
//! | number of connections of one address | one client that takes all of them |
//! | bytes of the headers, before they are parsed | clients that send headers without end |
//! | bytes of a body that are read, and of an answer that are written, at once | buffers of many connections |
//! | time for the headers to arrive, and between two requests | clients that connect and send nothing |
//! | time for written data to be read | clients that do not read their answers |
//!
//! `body/` limits the length of a body and the time for it, as those errors are answered.
//!
//! | file | what it adds |
//! |---|---|
//! | `addresses.rs` | limits for each address |
//! | `socket.rs` | a socket that is closed without losing the last answer |
//! | `departure.rs` | clients that leave while they are answered |

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use crate::addresses::{Addresses, Peer};
use crate::app::App;
use crate::arguments::AccessSettings;
use crate::departure::{Answering, NotedBody};
use crate::routes;
use crate::socket::Socket;

/// Bytes of a request line, and of the separators between headers, beside `--header-bytes-max`.
/// `routes.rs` answers headers between the two limits with an error that names its limit.
const REQUEST_LINE_BYTES_MAX: usize = 8 << 10;
/// Bytes that a connection reads or writes at once, unless its headers may be longer. Buffers of
/// this size stay in a processor's cache and below the size at which an allocator asks the system
/// for each.
const BUFFER_BYTES_MAX: usize = 32 << 10;
/// Time for clients to receive the error that the server is shutting down.
const ABORT_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Connections {
    service: TowerToHyperService<Router>,
    protocol: http1::Builder,
    unread_time: Option<Duration>,
    connection_permits: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    open: JoinSet<()>,
    graceful: GracefulShutdown,
}

impl Connections {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        Self {
            service: TowerToHyperService::new(routes::router(Arc::clone(app))),
            protocol: protocol(&app.access),
            unread_time: app.access.unread_time(),
            connection_permits: Arc::new(Semaphore::new(app.access.connections_max as usize)),
            addresses: Arc::new(Addresses::new(app.access.address_connections_max())),
            open: JoinSet::new(),
            graceful: GracefulShutdown::new(),
        }
    }

    /// Accepts connections until `end` is ready.
    pub(crate) async fn accept(
        &mut self,
        mut listener: TcpListener,
        end: impl Future<Output = ()>,
    ) {
        let mut end = pin!(end);
        let connection_permits = Arc::clone(&self.connection_permits);
        loop {
            let next = async {
                let permit = Arc::clone(&connection_permits).acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                (Listener::accept(&mut listener).await, permit)
            };
            tokio::select! {
                ((socket, from), permit) = next => match self.addresses.try_acquire(from.ip()) {
                    Some(connection_guard) => {
                        let connection = self.connection(socket, from.ip());
                        self.open.spawn(async move {
                            connection.await;
                            drop((connection_guard, permit));
                        });
                    }
                    None => {
                        // The answer to a rejected connection does not count against other connections.
                        drop(permit);
                        if let Some(rejection) = self.addresses.reject(socket) {
                            self.open.spawn(rejection);
                        }
                    }
                },
                Some(_) = self.open.join_next() => {}
                () = &mut end => return,
            }
        }
    }

    fn connection(
        &self,
        socket: TcpStream,
        from: IpAddr,
    ) -> impl Future<Output = ()> + Send + use<> {
        // Each piece of a stream is sent at once. A socket without this option still works.
        socket.set_nodelay(true).ok();
        let socket = Socket::new(socket);
        let client = socket.client_side();
        let mut socket = TimeoutStream::new(socket);
        socket.set_write_timeout(self.unread_time);
        let socket = TokioIo::new(Box::pin(socket));
        let answering = Answering::new();
        let service = service(self.service.clone(), Peer::of(from), answering.clone());
        let served = self.protocol.serve_connection(socket, service);
        let served = self.graceful.watch(served);
        async {
            tokio::select! {
                // An answer that is ready is sent first.
                biased;
                served = served => if let Err(error) = served {
                    tracing::debug!(%error, "a connection broke");
                },
                () = answering.abandoned(client) => {
                    tracing::debug!("a client left before it was answered");
                }
            }
        }
    }

    /// Lets running requests finish within `grace`. Later ones end with an error. All connections
    /// are closed afterwards.
    pub(crate) async fn close(mut self, app: &App, grace: Duration) {
        let finished = async { tokio::join!(app.drain(), self.graceful.shutdown()) };
        if timeout(grace, finished).await.is_err() {
            tracing::warn!("requests are still running: they end now");
            app.abort().await;
            let all_notified = async { while self.open.join_next().await.is_some() {} };
            if timeout(ABORT_NOTICE_TIMEOUT, all_notified).await.is_err() {
                tracing::warn!(
                    left = self.open.len(),
                    "some clients do not read: their connections are cut"
                );
            }
        }
        self.open.shutdown().await;
    }
}

fn protocol(access: &AccessSettings) -> http1::Builder {
    let head_bytes_max = access
        .header_bytes_max
        .saturating_add(REQUEST_LINE_BYTES_MAX);
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(access.arrival_time())
        .max_header_size(head_bytes_max)
        .max_buf_size(head_bytes_max.max(BUFFER_BYTES_MAX));
    protocol
}

/// Serves the requests of one connection.
fn service(
    service: TowerToHyperService<Router>,
    peer: Peer,
    answering: Answering,
) -> impl Service<
    Request<Incoming>,
    Response = Response<NotedBody<Body>>,
    Error = Infallible,
    Future: Send,
> {
    service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answering = answering.clone();
        let answer = service.call(request.map(|body| answering.begin_after(body)));
        async move { Ok(answer.await?.map(|body| answering.end_after(body))) }
    })
}
