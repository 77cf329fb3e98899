//! A hub on this machine: the routes of Hugging Face's hub that a download needs, and a second
//! server that it redirects to. It fails as it is asked to.

#![allow(dead_code, reason = "each program takes what it needs")]

mod stored;

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub(crate) use stored::Stored;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "hf_loopback";

/// A failure of one request for a file's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Status(u16),
    /// The answer ends after that many bytes.
    CutAfter(u64),
    /// The answer stops after that many bytes, and the connection stays open.
    StallAfter(u64),
    /// The whole file comes, whatever range was asked for.
    NoRange,
    /// The same, and the answer ends after that many bytes.
    NoRangeCutAfter(u64),
    /// The part comes with a range that cannot be read.
    UnreadableRange,
    /// Bytes come that are not the file's.
    OtherBytes,
    /// A page comes, with status 200.
    Html,
}

/// How the hub behaves at all times.
#[derive(Clone, Copy, Default)]
pub(crate) struct Manners {
    /// Only callers with [`TOKEN`] get anything.
    pub(crate) gated: bool,
    /// The listing has no digests and sizes, as from older hubs.
    pub(crate) lists_names_only: bool,
    /// The listing is a page of HTML.
    pub(crate) is_page: bool,
    /// The listing has spaces behind it up to this length.
    pub(crate) listing_bytes_min: usize,
    /// The first listings get this status.
    pub(crate) failing_listings: u32,
    /// Pause between two pieces of 64 KB.
    pub(crate) pause: Duration,
}

/// A running hub. Its threads end with the process.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    repository: String,
    files: Vec<Stored>,
    manners: Manners,
    /// Where bytes are.
    stores: SocketAddr,
    faults: Mutex<VecDeque<Fault>>,
    failing_listings: Mutex<u32>,
    /// One line for each request.
    requests: Mutex<Vec<String>>,
}

struct Request {
    path: String,
    range_start: Option<u64>,
    token: Option<String>,
}

impl Hub {
    /// Serves one repository at this address, or at a free port.
    pub(crate) fn serve(
        address: &str,
        repository: &str,
        files: Vec<Stored>,
        manners: Manners,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let stores = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let state = Arc::new(State {
            repository: repository.to_owned(),
            files,
            manners,
            stores: stores.local_addr().expect("an address"),
            faults: Mutex::default(),
            failing_listings: Mutex::new(manners.failing_listings),
            requests: Mutex::default(),
        });
        let address = listener.local_addr().expect("an address");
        accept(listener, Arc::clone(&state), State::answer);
        accept(stores, Arc::clone(&state), State::answer_store);
        Self { address, state }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next requests for bytes fail so, in order.
    pub(crate) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().expect("no panic").extend(faults);
    }

    /// The requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().expect("no panic"))
    }
}

fn accept(
    listener: TcpListener,
    state: Arc<State>,
    answer: fn(&State, &Request, &mut TcpStream) -> io::Result<()>,
) {
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                let mut socket = socket;
                // A caller that is gone ends its answer.
                if let Ok(request) = Request::read(&socket) {
                    let _ = answer(&state, &request, &mut socket);
                }
            });
        }
    });
}

impl Request {
    fn read(socket: &TcpStream) -> io::Result<Self> {
        let mut lines = BufReader::new(socket).lines();
        let first = lines
            .next()
            .unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut range_start, mut token) = (None, None);
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "range" => {
                    let range = value.trim_start_matches("bytes=");
                    range_start = range.split('-').next().and_then(|start| start.parse().ok());
                }
                "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
                _ => {}
            }
        }
        Ok(Self {
            path,
            range_start,
            token,
        })
    }
}

impl State {
    fn note(&self, request: &Request) {
        let range = request
            .range_start
            .map_or(String::new(), |start| format!(" from {start}"));
        let token = if request.token.is_some() {
            " with a token"
        } else {
            ""
        };
        let line = format!("{}{range}{token}", request.path);
        self.requests.lock().expect("no panic").push(line);
    }

    /// The hub itself.
    fn answer(&self, request: &Request, socket: &mut TcpStream) -> io::Result<()> {
        self.note(request);
        let path = request.path.split('?').next().unwrap_or_default();
        let listings = format!("/api/models/{}/revision/", self.repository);
        let files = format!("/{}/resolve/{COMMIT}/", self.repository);
        let is_listing = ["main", COMMIT].map(|revision| format!("{listings}{revision}"));
        let is_listing = is_listing.contains(&path.to_owned());
        if !is_listing && !path.starts_with(&files) {
            return head(socket, 404, "x-error-code: RepoNotFound\r\n", 0);
        }
        if self.manners.gated && request.token.as_deref() != Some(TOKEN) {
            return head(socket, 403, "x-error-code: GatedRepo\r\n", 0);
        }
        if is_listing {
            return self.answer_listing(socket);
        }
        let name = &path[files.len()..];
        let Some(file) = self.files.iter().find(|file| file.name == name) else {
            return head(socket, 404, "x-error-code: EntryNotFound\r\n", 0);
        };
        if file.is_large() {
            let headers = format!(
                "location: http://{}/{name}\r\nx-repo-commit: {COMMIT}\r\nx-linked-size: {}\r\n\
                 x-linked-etag: \"{}\"\r\n",
                self.stores, file.size, file.digest
            );
            return head(socket, 302, &headers, 0);
        }
        self.send(file, request.range_start, None, socket)
    }

    fn answer_listing(&self, socket: &mut TcpStream) -> io::Result<()> {
        let mut failing = self.failing_listings.lock().expect("no panic");
        if *failing > 0 {
            *failing -= 1;
            return head(socket, 503, "retry-after: 0\r\n", 0);
        }
        if self.manners.is_page {
            let page = "<html>Sign in</html>";
            head(
                socket,
                200,
                "content-type: text/html\r\n",
                page.len() as u64,
            )?;
            return socket.write_all(page.as_bytes());
        }
        let entries = self.files.iter().map(|file| {
            let (name, digest, size) = (&file.name, &file.digest, file.size);
            let large = format!(
                r#", "blobId": "{COMMIT}", "lfs": {{"sha256": "{digest}", "size": {size}}}"#
            );
            let rest = match (self.manners.lists_names_only, file.is_large()) {
                (true, _) => String::new(),
                (false, true) => large,
                (false, false) => format!(r#", "blobId": "{digest}", "size": {size}"#),
            };
            format!(r#"{{"rfilename": "{name}"{rest}}}"#)
        });
        let entries: Vec<String> = entries.collect();
        let listing = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#,
            entries.join(",")
        );
        let rest = self.manners.listing_bytes_min.saturating_sub(listing.len());
        let listing = listing + &" ".repeat(rest);
        head(
            socket,
            200,
            "content-type: application/json\r\n",
            listing.len() as u64,
        )?;
        socket.write_all(listing.as_bytes())
    }

    /// The server that has the large files.
    fn answer_store(&self, request: &Request, socket: &mut TcpStream) -> io::Result<()> {
        self.note(request);
        let fault = self.faults.lock().expect("no panic").pop_front();
        let name = request.path.trim_start_matches('/');
        let file = self.files.iter().find(|file| file.name == name);
        self.send(
            file.expect("the hub led here"),
            request.range_start,
            fault,
            socket,
        )
    }

    fn send(
        &self,
        file: &Stored,
        range_start: Option<u64>,
        fault: Option<Fault>,
        socket: &mut TcpStream,
    ) -> io::Result<()> {
        let start = match fault {
            Some(Fault::Status(status)) => return head(socket, status, "retry-after: 0\r\n", 0),
            Some(Fault::Html) => {
                head(socket, 200, "content-type: text/html\r\n", 4)?;
                return socket.write_all(b"busy");
            }
            Some(Fault::NoRange | Fault::NoRangeCutAfter(_)) => 0,
            _ => range_start.unwrap_or(0),
        };
        let size = file.size;
        let etag = format!("etag: \"{}\"\r\n", file.digest);
        let has_ranges = !matches!(fault, Some(Fault::NoRange | Fault::NoRangeCutAfter(_)));
        if range_start.is_some() && has_ranges {
            let unit = match fault {
                Some(Fault::UnreadableRange) => "blocks",
                _ => "bytes",
            };
            let range = format!(
                "{etag}content-range: {unit} {start}-{}/{size}\r\n",
                size - 1
            );
            head(socket, 206, &range, size - start)?;
        } else {
            head(socket, 200, &etag, size)?;
        }
        let most = match fault {
            Some(
                Fault::CutAfter(bytes) | Fault::StallAfter(bytes) | Fault::NoRangeCutAfter(bytes),
            ) => bytes,
            _ => u64::MAX,
        };
        let mut content = file.read(start)?.take(most);
        let mut chunk = vec![0; 64 << 10];
        loop {
            let read = content.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            if matches!(fault, Some(Fault::OtherBytes)) {
                chunk[0] ^= 1;
            }
            socket.write_all(&chunk[..read])?;
            thread::sleep(self.manners.pause);
        }
        if matches!(fault, Some(Fault::StallAfter(_))) {
            // The caller gives up first, and this read ends then.
            let _ = socket.read(&mut chunk);
        }
        Ok(())
    }
}

fn head(socket: &mut TcpStream, status: u16, headers: &str, length: u64) -> io::Result<()> {
    write!(
        socket,
        "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    )
}
