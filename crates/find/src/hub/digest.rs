//! Digests of files, as the hub lists them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Reading in pieces of this size keeps memory flat.
const CHUNK_BYTES: usize = 256 * 1024;
const SHA1_DIGITS: usize = 40;
const SHA256_DIGITS: usize = 64;

/// Whether it is a digest that can be checked: a SHA-256, or git's SHA-1 of a small file.
pub(super) fn is_known(digest: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    [SHA1_DIGITS, SHA256_DIGITS].contains(&digest.len()) && digest.bytes().all(is_hex)
}

/// The file's digest, of the kind that `like` is of.
pub(super) fn of_file(path: &Path, like: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    if like.len() == SHA256_DIGITS {
        let mut hasher = Sha256::new();
        read(&mut file, |bytes| hasher.update(bytes))?;
        return Ok(hex(&hasher.finalize()));
    }
    let mut hasher = Sha1::new();
    // Git hashes a file behind a header of its own.
    hasher.update(format!("blob {}\0", file.metadata()?.len()));
    read(&mut file, |bytes| hasher.update(bytes))?;
    Ok(hex(&hasher.finalize()))
}

fn read(file: &mut File, mut add: impl FnMut(&[u8])) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(()),
            bytes => add(&chunk[..bytes]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}
