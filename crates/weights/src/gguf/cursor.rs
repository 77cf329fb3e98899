//! Reading little-endian values off a mapped file, never past its end.

use super::super::ModelError;
use super::super::opened::OpenedFile;

/// A position in a file. Every read is bounds-checked first, and the error of a failed check
/// contains `what`.
pub(super) struct Cursor<'a> {
    file: &'a OpenedFile,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a OpenedFile, at: usize) -> Self {
        assert!(at <= file.bytes().len(), "a cursor starts within its file");
        Self { file, at }
    }

    /// Bytes before the cursor.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next `count` bytes.
    pub(super) fn bytes(&mut self, count: u64, what: &str) -> Result<&'a [u8], ModelError> {
        let rest = &self.file.bytes()[self.at..];
        if count > rest.len() as u64 {
            return Err(self.file.damaged(
                format!("it ends {} bytes into {what}", rest.len()),
                format!("{count} bytes"),
            ));
        }
        let count = count as usize;
        self.at += count;
        Ok(&rest[..count])
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// The bytes of a string: its length, then that many bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], ModelError> {
        let length = self.u64(what)?;
        self.bytes(length, what)
    }

    /// A string that is a name and must therefore be UTF-8.
    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, ModelError> {
        let bytes = self.string(what)?;
        str::from_utf8(bytes)
            .map_err(|_| self.file.damaged(format!("{what} is not UTF-8"), "UTF-8"))
    }

    /// Fails when `count` items of at least `bytes_min` bytes each cannot follow. After the
    /// check, memory for that many may be allocated.
    pub(super) fn expect_remaining(
        &self,
        count: u64,
        bytes_min: u64,
        what: &str,
    ) -> Result<(), ModelError> {
        let rest = (self.file.bytes().len() - self.at) as u64;
        if count <= rest / bytes_min {
            return Ok(());
        }
        Err(self.file.damaged(
            format!("{count} {what} in {rest} bytes"),
            format!("at least {bytes_min} bytes for each"),
        ))
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let bytes = self.bytes(N as u64, what)?;
        Ok(bytes
            .try_into()
            .expect("the slice has the requested length"))
    }
}
