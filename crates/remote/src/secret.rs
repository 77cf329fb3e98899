//! The secret that makes machines one fleet.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=1024;

/// The secret of a fleet: it reads and writes the fleet's state.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// The error of a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("{path} cannot be read: expected a file with the fleet's secret", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The secret is too short or too long.
    #[error(
        "the fleet's secret has {found} bytes; expected {} to {}, such as those of \
         `openssl rand -hex 32`",
        SECRET_BYTES.start(),
        SECRET_BYTES.end()
    )]
    Length {
        /// Its bytes; one more than allowed if there are more.
        found: usize,
    },
}

impl Secret {
    /// A secret of these bytes, which must be random.
    ///
    /// # Errors
    ///
    /// [`SecretError::Length`] unless there are 32 to 1,024 of them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = Zeroizing::new(bytes.into());
        let found = bytes.len();
        if !SECRET_BYTES.contains(&found) {
            return Err(SecretError::Length { found });
        }
        Ok(Self(bytes))
    }

    /// Reads the secret from a file. White space around it does not count.
    ///
    /// # Errors
    ///
    /// [`SecretError`].
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new(Vec::new());
        // White space may follow.
        let most = *SECRET_BYTES.end() as u64 + 16;
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(most).read_to_end(&mut bytes));
        read.map_err(|source| SecretError::File {
            path: path.to_owned(),
            source,
        })?;
        Self::new(bytes.trim_ascii())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
