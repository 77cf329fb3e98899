//! Conversion of MLX's exceptions to [`ModelError`].

use mlx_rs::error::{AsSliceError, Exception};

use motet_protocol::ModelError;

/// Any failure within this crate: an MLX exception, or a [`ModelError`]. It leaves the crate as
/// a [`ModelError`].
#[derive(Debug)]
pub(crate) struct MlxError(ModelError);

impl From<Exception> for MlxError {
    fn from(exception: Exception) -> Self {
        Self(ModelError::Device(exception.what().to_owned()))
    }
}

impl From<AsSliceError> for MlxError {
    fn from(error: AsSliceError) -> Self {
        let error = format!("cannot read an array back: {error}");
        Self(ModelError::Device(error))
    }
}

impl From<ModelError> for MlxError {
    fn from(error: ModelError) -> Self {
        Self(error)
    }
}

impl From<MlxError> for ModelError {
    fn from(error: MlxError) -> Self {
        error.0
    }
}
