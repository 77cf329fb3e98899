//! Serves files of this machine as a repository of a hub, to try downloads without the network:
//!
//! ```sh
//! cargo run -p motet-find --example loopback_hub -- ORG/NAME model.gguf [--kilobytes-per-second N]
//! HF_ENDPOINT=http://127.0.0.1:8181 cargo xtask serve --model hf:ORG/NAME
//! ```

#[path = "../tests/loopback/mod.rs"]
mod loopback;

use std::path::PathBuf;
use std::time::Duration;

use loopback::{Hub, Manners, Stored};

const ADDRESS: &str = "127.0.0.1:8181";
const USAGE: &str = "usage: loopback_hub ORG/NAME FILE... [--kilobytes-per-second N]";

fn main() {
    let mut words = std::env::args().skip(1);
    let repository = words.next().expect(USAGE);
    let mut files = Vec::new();
    let mut manners = Manners::default();
    while let Some(word) = words.next() {
        if word == "--kilobytes-per-second" {
            let rate: u64 = words
                .next()
                .and_then(|rate| rate.parse().ok())
                .expect(USAGE);
            manners.pause = Duration::from_millis(64_000 / rate.max(1));
            continue;
        }
        let path = PathBuf::from(word);
        let name = path
            .file_name()
            .expect(USAGE)
            .to_string_lossy()
            .into_owned();
        files.push(Stored::file(&name, path).expect("a readable file"));
    }
    let hub = Hub::serve(ADDRESS, &repository, files, manners);
    println!("HF_ENDPOINT={} has {repository}", hub.endpoint());
    loop {
        std::thread::park();
    }
}
