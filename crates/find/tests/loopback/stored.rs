//! The files of a repository.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// A file of the repository.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) content: Content,
    /// As the hub lists it.
    pub(crate) digest: String,
    pub(crate) size: u64,
}

#[derive(Clone)]
pub(crate) enum Content {
    Bytes(Arc<[u8]>),
    File(PathBuf),
}

impl Stored {
    pub(crate) fn bytes(name: &str, bytes: Vec<u8>) -> Self {
        let size = bytes.len() as u64;
        let digest = digest(name, size, &mut bytes.as_slice()).expect("bytes");
        Self {
            name: name.to_owned(),
            content: Content::Bytes(bytes.into()),
            digest,
            size,
        }
    }

    pub(crate) fn file(name: &str, path: PathBuf) -> io::Result<Self> {
        let mut file = File::open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            name: name.to_owned(),
            digest: digest(name, size, &mut file)?,
            content: Content::File(path),
            size,
        })
    }

    /// Whether the hub stores the file apart from its repository.
    pub(super) fn is_large(&self) -> bool {
        is_large(&self.name)
    }

    pub(super) fn read(&self, start: u64) -> io::Result<Box<dyn Read + '_>> {
        Ok(match &self.content {
            Content::Bytes(bytes) => Box::new(&bytes[start as usize..]),
            Content::File(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start))?;
                Box::new(file)
            }
        })
    }
}

fn is_large(name: &str) -> bool {
    [".gguf", ".safetensors", ".bin"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn digest(name: &str, size: u64, content: &mut dyn Read) -> io::Result<String> {
    let mut chunk = vec![0; 1 << 18];
    let (mut large, mut small) = (Sha256::new(), Sha1::new());
    small.update(format!("blob {size}\0"));
    loop {
        let read = content.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        large.update(&chunk[..read]);
        small.update(&chunk[..read]);
    }
    let digest = if is_large(name) {
        large.finalize().to_vec()
    } else {
        small.finalize().to_vec()
    };
    let mut text = String::new();
    for byte in digest {
        write!(text, "{byte:02x}").expect("a string");
    }
    Ok(text)
}
