//! `cargo xtask page`: the server's page in a real browser, while it serves.
//!
//! Optional: it needs Chromium, which CI does not have.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::clients::{self, Server};
use crate::{process, workspace};

/// Names of Chromium's program.
const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
/// Time after which the page is checked.
const CHECK_DELAY: Duration = Duration::from_secs(8);
/// Frames that the page must have drawn by then.
const FRAMES_MIN: u64 = 4;
/// The protocol's events for messages of the console.
const CONSOLE: [&str; 3] = [
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
    "Log.entryAdded",
];
const USERS: usize = 12;
/// Users whose requests run at the same time in the name of one.
const CROWD: usize = 16;
/// Longest time until the page shows all of them.
const CROWD_SECONDS_MAX: u64 = 60;
/// Name, width, height, and whether the colours are dark.
const PICTURES: [(&str, u32, u32, bool); 4] = [
    ("laptop-light", 1280, 800, false),
    ("laptop-dark", 1280, 800, true),
    ("phone-light", 390, 844, false),
    ("phone-dark", 390, 844, true),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The browser, if it is not on the path as chromium or google-chrome
    #[arg(long, value_name = "PROGRAM")]
    browser: Option<PathBuf>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let browser = browser(arguments)?;
    let server = Server::start(
        &clients::build_server(&Cache::open()?)?,
        &["--cache-mib", "2", "--host-mib", "4"],
    )?;
    let address = server.url.trim_start_matches("http://").to_owned();
    let load = Load::start(&address);
    let pictures = Browser::start(&browser).and_then(|mut browser| {
        check(&mut browser, &server.url)?;
        check_queues(&mut browser)?;
        take_pictures(&mut browser)
    });
    load.end();
    let pictures = pictures?;
    println!("the page shows a running load, and the console is empty");
    println!("pictures: {}", pictures.display());
    Ok(())
}

fn browser(arguments: &Arguments) -> Result<PathBuf> {
    if let Some(browser) = &arguments.browser {
        return Ok(browser.clone());
    }
    let is_present = |name: &&&str| process::succeeds(Command::new(name).arg("--version"));
    let found = BROWSERS.iter().find(is_present);
    found.map(PathBuf::from).context(
        "Chromium, which shows the page, is not installed: on Debian and Ubuntu \
         `apt install chromium`, on macOS `brew install --cask chromium`; or name one with --browser",
    )
}

/// Lets the page run for a while. Fails on any message of the console, and on a page that does
/// not show the running load.
fn check(browser: &mut Browser, url: &str) -> Result<()> {
    for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
        browser.ask(domain, &json!({}))?;
    }
    browser.size(PICTURES[0].1, PICTURES[0].2, false)?;
    browser.ask("Page.navigate", &json!({"url": url}))?;
    thread::sleep(CHECK_DELAY);
    let frames = browser.evaluate("Number(document.documentElement.dataset.frames)")?;
    ensure!(
        frames.as_u64() >= Some(FRAMES_MIN),
        "the page has drawn {frames} frames; expected {FRAMES_MIN} or more"
    );
    let state = browser.evaluate("document.getElementById('state').textContent")?;
    ensure!(state == "busy", "the page says that the server is {state}");
    let nodes = browser.evaluate("document.querySelectorAll('#trie [data-id]').length")?;
    ensure!(
        nodes.as_u64() > Some(0),
        "the page shows no node of the trie"
    );
    ensure!(
        browser.console.is_empty(),
        "the console has messages:\n{}",
        browser.console.join("\n")
    );
    Ok(())
}

/// Fails unless all columns of the queues fit beside many running sequences of one user.
fn check_queues(browser: &mut Browser) -> Result<()> {
    let shown = format!(
        "[...document.querySelectorAll('#users .queue')].some(one => one.textContent.startsWith('{CROWD},'))"
    );
    let mut seconds = 0..CROWD_SECONDS_MAX;
    while browser.evaluate(&shown)? != true {
        ensure!(
            seconds.next().is_some(),
            "the page does not show {CROWD} running sequences of one user"
        );
        thread::sleep(Duration::from_secs(1));
    }
    let hidden = "(one => one.scrollWidth - one.clientWidth)(document.getElementById('queues'))";
    let hidden = browser.evaluate(hidden)?;
    ensure!(hidden == 0, "{hidden} pixels of the queues are cut");
    Ok(())
}

fn take_pictures(browser: &mut Browser) -> Result<PathBuf> {
    let folder = workspace::root().join("target/motet/page");
    std::fs::create_dir_all(&folder)?;
    for (name, width, height, is_dark) in PICTURES {
        browser.size(width, height, is_dark)?;
        // Some frames in the new size.
        thread::sleep(Duration::from_secs(2));
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth")?;
        ensure!(
            overflow == 0,
            "{name}: the page is {overflow} pixels too wide"
        );
        let picture = browser.ask("Page.captureScreenshot", &json!({"format": "png"}))?;
        let picture = picture["data"].as_str().context("no picture")?;
        std::fs::write(folder.join(format!("{name}.png")), from_base64(picture))?;
    }
    Ok(folder)
}

/// A browser without a window, spoken to in Chrome's DevTools protocol through two pipes.
struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    /// Session of the tab.
    session: Option<String>,
    asked: u64,
    /// Messages of the console.
    console: Vec<String>,
}

impl Browser {
    fn start(program: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("motet-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (to, from) = (folder.join("to"), folder.join("from"));
        process::run(Command::new("mkfifo").args([&to, &from]))?;
        // The protocol's pipes are descriptors 3 and 4. The page is our own; root has no sandbox.
        let process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\""])
            .arg(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .args(["--remote-debugging-pipe", "about:blank"])
            .env("TO", &to)
            .env("FROM", &from)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the browser")?;
        let mut browser = Self {
            process,
            to: File::options().write(true).open(&to)?,
            from: BufReader::new(File::open(&from)?),
            session: None,
            asked: 0,
            console: Vec::new(),
        };
        let tab = browser.ask("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": tab["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", &attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        Ok(browser)
    }

    /// Sends a request, and reads until its answer.
    fn ask(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.asked += 1;
        let mut question = json!({"id": self.asked, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            question["sessionId"] = json!(session);
        }
        write!(self.to, "{question}\0")?;
        loop {
            let mut message = Vec::new();
            self.from.read_until(0, &mut message)?;
            ensure!(message.pop() == Some(0), "the browser has ended");
            let message: Value = serde_json::from_slice(&message)?;
            let event = message["method"].as_str().unwrap_or_default();
            if CONSOLE.contains(&event) {
                self.console.push(message["params"].to_string());
            }
            if message["id"] == self.asked {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
        }
    }

    /// The value of an expression on the page.
    fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let evaluated = json!({"expression": expression, "returnByValue": true});
        let evaluated = self.ask("Runtime.evaluate", &evaluated)?;
        Ok(evaluated["result"]["value"].clone())
    }

    fn size(&mut self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.ask("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let scheme = json!({"name": "prefers-color-scheme", "value": scheme});
        let media = json!({"features": [scheme]});
        self.ask("Emulation.setEmulatedMedia", &media).map(drop)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Decodes base64, which the protocol uses for pictures.
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len()), 0_u32, 0);
    for digit in text.bytes().filter_map(digit) {
        bits = (bits << 6) | u32::from(digit);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

/// Users that send requests until they are stopped.
struct Load {
    ends: Arc<AtomicBool>,
    users: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: &str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let user = |number| {
            let (address, ends) = (address.to_owned(), Arc::clone(&ends));
            thread::spawn(move || {
                let turns = 0_usize..;
                for turn in turns.take_while(|_| !ends.load(Ordering::Relaxed)) {
                    // A rejected request is sent again.
                    ask(&address, number, turn).ok();
                }
            })
        };
        let users = (0..USERS + CROWD).map(user).collect();
        Self { ends, users }
    }

    fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        for user in self.users {
            user.join().expect("users do not panic");
        }
    }
}

/// One request. Its prefix is shared with other requests.
fn ask(address: &str, user: usize, turn: usize) -> Result<()> {
    // Requests of the crowd are long, so that all of them run at the same time.
    let (name, tokens) = if user >= USERS {
        (USERS, 2000)
    } else {
        (user / 3, 100 + 40 * (user % 5))
    };
    let topic = "All voices begin alike. ".repeat(10 + 20 * (user % 3));
    let own = format!("{} and then {} sings alone. ", turn % 20, user).repeat(6);
    let body = format!(
        "{{\"prompt\": \"{topic}{own}\", \"max_tokens\": {tokens}, \"ignore_eos\": true, \
         \"user\": \"user {name}\"}}"
    );
    let mut socket = TcpStream::connect(address)?;
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(())
}
