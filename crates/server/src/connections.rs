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
#[cfg(feature = "grpc")]
use std::io::Cursor;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::serve::Listener;
use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
#[cfg(feature = "grpc")]
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
#[cfg(feature = "grpc")]
use hyper_util::rt::TokioExecutor;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use motet::Shutdown;
#[cfg(feature = "grpc")]
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
#[cfg(feature = "grpc")]
use tokio_rustls::TlsAcceptor;

use crate::addresses::{Addresses, Peer};
use crate::app::App;
use crate::arguments::AccessSettings;
use crate::departure::{Answering, NotedBody};
use crate::socket::{ClientSide, Socket};

/// Bytes of a request line, and of the separators between headers, beside `--header-bytes-max`.
/// `routes.rs` answers headers between the two limits with an error that names its limit.
const REQUEST_LINE_BYTES_MAX: usize = 8 << 10;
/// Bytes that a connection reads or writes at once, unless its headers may be longer. Buffers of
/// this size stay in a processor's cache and below the size at which an allocator asks the system
/// for each.
const BUFFER_BYTES_MAX: usize = 32 << 10;
/// Bytes that an HTTP/2 client may send ahead of what is read of a request, and of all its requests.
#[cfg(feature = "grpc")]
const WINDOW_BYTES: u32 = 64 << 10;
#[cfg(feature = "grpc")]
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes with which an HTTP/2 client begins.
#[cfg(feature = "grpc")]
const PREFACE_BYTES: usize = 24;
/// Time without a frame after which an HTTP/2 client is asked whether it is there.
#[cfg(feature = "grpc")]
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time for its answer.
#[cfg(feature = "grpc")]
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for clients to receive the error that the server is shutting down.
const ABORT_NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The limits that the connections of all listeners share.
#[derive(Clone)]
pub(crate) struct ConnectionLimits {
    connection_permits: Arc<Semaphore>,
    addresses: Arc<Addresses>,
}

/// The connections of one listener.
pub(crate) struct Connections {
    service: TowerToHyperService<Router>,
    protocol: Protocol,
    unread_time: Option<Duration>,
    limits: ConnectionLimits,
    open: JoinSet<()>,
    graceful: GracefulShutdown,
    /// Dropped when connections that have not begun to speak are to end.
    opening: watch::Sender<()>,
}

/// The protocol of a listener's connections.
#[derive(Clone)]
enum Protocol {
    Http1(http1::Builder),
    /// gRPC's, with a time for TLS to be agreed on.
    #[cfg(feature = "grpc")]
    Http2 {
        builder: http2::Builder<TokioExecutor>,
        tls: Option<TlsAcceptor>,
        handshake_time: Option<Duration>,
    },
}

impl ConnectionLimits {
    /// Those of the listener for HTTP, beside so many others. A listener that waits for a connection
    /// holds a permit.
    pub(crate) fn new(access: &AccessSettings, others: usize) -> Self {
        let permits = access.connections_max as usize + others;
        Self {
            connection_permits: Arc::new(Semaphore::new(permits)),
            addresses: Arc::new(Addresses::new(access.address_connections_max())),
        }
    }

    /// Those of another listener at this address. All share the limit of connections.
    #[cfg(feature = "grpc")]
    fn at(&self, access: &AccessSettings, address: IpAddr) -> Self {
        let of_address = access.address_connections_max_at(address);
        Self {
            connection_permits: Arc::clone(&self.connection_permits),
            addresses: Arc::new(Addresses::new(of_address)),
        }
    }
}

impl Connections {
    /// Those that speak HTTP/1, with a router's services.
    pub(crate) fn http(app: &App, router: Router, limits: &ConnectionLimits) -> Self {
        Self::new(app, router, Protocol::Http1(http1(&app.access)), limits)
    }

    /// Those that speak gRPC at this address, with TLS if there is any.
    #[cfg(feature = "grpc")]
    pub(crate) fn grpc(
        app: &App,
        router: Router,
        (address, tls): (IpAddr, Option<TlsAcceptor>),
        limits: &ConnectionLimits,
    ) -> Self {
        let protocol = Protocol::Http2 {
            builder: http2(app),
            tls,
            handshake_time: app.access.arrival_time(),
        };
        Self::new(app, router, protocol, &limits.at(&app.access, address))
    }

    fn new(app: &App, router: Router, protocol: Protocol, limits: &ConnectionLimits) -> Self {
        Self {
            service: TowerToHyperService::new(router),
            protocol,
            unread_time: app.access.unread_time(),
            limits: limits.clone(),
            open: JoinSet::new(),
            graceful: GracefulShutdown::new(),
            opening: watch::Sender::new(()),
        }
    }

    /// Accepts connections until `end` is ready.
    pub(crate) async fn accept(
        &mut self,
        mut listener: TcpListener,
        end: impl Future<Output = ()>,
    ) {
        let mut end = pin!(end);
        let ConnectionLimits {
            connection_permits,
            addresses,
        } = self.limits.clone();
        loop {
            let next = async {
                let permit = Arc::clone(&connection_permits).acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                (Listener::accept(&mut listener).await, permit)
            };
            tokio::select! {
                ((socket, from), permit) = next => match addresses.try_acquire(from.ip()) {
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
                        if let Some(rejection) = addresses.reject(socket) {
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
        let connection = Connection {
            socket: Box::pin(socket),
            client,
            service: (self.service.clone(), Peer::of(from)),
            graceful: self.graceful.watcher(),
            #[cfg(feature = "grpc")]
            opening: self.opening.subscribe(),
        };
        connection.serve(self.protocol.clone())
    }
}

/// Lets running requests finish within `grace`. The rest are handed over, and end with an error that
/// says so. When `now` is ready, all that run end at once. All connections are closed afterwards.
pub(crate) async fn close(
    all: Vec<Connections>,
    app: &App,
    grace: Duration,
    now: impl Future<Output = ()>,
) {
    let mut open = JoinSet::new();
    let mut graceful = Vec::new();
    for connections in all {
        drop(connections.opening);
        graceful.push(connections.graceful.shutdown());
        let mut of_listener = connections.open;
        open.spawn(async move { while of_listener.join_next().await.is_some() {} });
    }
    let mut now = pin!(now);
    let finished = async { tokio::join!(app.drain(), join_all(graceful)) };
    tokio::select! {
        biased;
        _ = finished => return open.shutdown().await,
        () = &mut now => {}
        () = tokio::time::sleep(grace) => {
            tracing::info!("requests are still running: they are handed over");
            tokio::select! {
                () = app.shutdown(Shutdown::HandOver) => {}
                () = now => {}
            }
        }
    }
    // Nothing is left to end, unless `now` was ready first.
    app.shutdown(Shutdown::Abort).await;
    let all_notified = async { while open.join_next().await.is_some() {} };
    if timeout(ABORT_NOTICE_TIMEOUT, all_notified).await.is_err() {
        tracing::warn!("some clients do not read: their connections are cut");
    }
    open.shutdown().await;
}

/// A connection that has been accepted.
struct Connection {
    socket: Pin<Box<TimeoutStream<Socket>>>,
    client: ClientSide,
    service: (TowerToHyperService<Router>, Peer),
    graceful: Watcher,
    #[cfg(feature = "grpc")]
    opening: watch::Receiver<()>,
}

impl Connection {
    /// Serves its requests until it ends.
    async fn serve(self, protocol: Protocol) {
        match protocol {
            Protocol::Http1(protocol) => self.serve_http1(&protocol).await,
            #[cfg(feature = "grpc")]
            Protocol::Http2 {
                builder,
                tls,
                handshake_time,
            } => self.serve_http2(&builder, tls, handshake_time).await,
        }
    }

    /// Serves requests side by side. HTTP/2 reads all the time, and so notices a client that disconnects.
    #[cfg(feature = "grpc")]
    async fn serve_http2(
        mut self,
        protocol: &http2::Builder<TokioExecutor>,
        tls: Option<TlsAcceptor>,
        handshake_time: Option<Duration>,
    ) {
        let opened = async {
            match handshake_time {
                Some(time) => timeout(time, opened(self.socket, tls)).await?,
                None => opened(self.socket, tls).await,
            }
        };
        let opened = tokio::select! {
            opened = opened => opened,
            // A client that connects and does not speak delays no shutdown.
            _ = self.opening.changed() => return,
        };
        let socket = match opened {
            Ok(socket) => socket,
            Err(error) => return tracing::debug!(%error, "a connection was not opened"),
        };
        let (service, peer) = self.service;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            service.call(request)
        });
        let served = protocol.serve_connection(TokioIo::new(socket), service);
        log_broken(self.graceful.watch(served).await);
    }

    async fn serve_http1(self, protocol: &http1::Builder) {
        let answering = Answering::new();
        let (service, peer) = self.service;
        let service = http1_service(service, peer, answering.clone());
        let served = protocol.serve_connection(TokioIo::new(self.socket), service);
        let served = self.graceful.watch(served);
        tokio::select! {
            // An answer that is ready is sent first.
            biased;
            served = served => log_broken(served),
            () = answering.abandoned(self.client) => {
                tracing::debug!("a client left before it was answered");
            }
        }
    }
}

/// A socket of HTTP/2, in clear or not.
#[cfg(feature = "grpc")]
trait Http2Socket: AsyncRead + AsyncWrite + Unpin + Send {}

#[cfg(feature = "grpc")]
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Http2Socket for S {}

/// Waits for the preface of HTTP/2, after the handshake of TLS if there is one. The protocol itself waits
/// for it without a bound.
#[cfg(feature = "grpc")]
async fn opened(
    socket: Pin<Box<TimeoutStream<Socket>>>,
    tls: Option<TlsAcceptor>,
) -> std::io::Result<impl Http2Socket> {
    let mut socket: Box<dyn Http2Socket> = match tls {
        Some(tls) => Box::new(tls.accept(socket).await?),
        None => Box::new(socket),
    };
    let mut preface = [0; PREFACE_BYTES];
    socket.read_exact(&mut preface).await?;
    let (reader, writer) = tokio::io::split(socket);
    Ok(tokio::io::join(Cursor::new(preface).chain(reader), writer))
}

fn log_broken(served: hyper::Result<()>) {
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke");
    }
}

/// HTTP/2 for gRPC: as many requests at once as the engine holds, with windows of few bytes.
#[cfg(feature = "grpc")]
fn http2(app: &App) -> http2::Builder<TokioExecutor> {
    let access = &app.access;
    let header_bytes_max = u32::try_from(access.header_bytes_max).unwrap_or(u32::MAX);
    let inside_max = app.engine.config().scheduler.inside_max();
    let mut protocol = http2::Builder::new(TokioExecutor::new());
    protocol
        .timer(TokioTimer::new())
        .max_header_list_size(header_bytes_max)
        .max_concurrent_streams(u32::try_from(inside_max).unwrap_or(u32::MAX))
        .max_send_buf_size(BUFFER_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(Some(PING_INTERVAL))
        .keep_alive_timeout(PING_TIMEOUT);
    protocol
}

fn http1(access: &AccessSettings) -> http1::Builder {
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

/// Serves the requests of one connection of HTTP/1.
fn http1_service(
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
