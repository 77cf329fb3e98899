//! MLX's exceptions as this crate's errors.

use mlx_rs::error::{AsSliceError, Exception};

use crate::model::ModelError;

impl From<Exception> for ModelError {
    fn from(exception: Exception) -> Self {
        ModelError::Device(exception.what().to_owned())
    }
}

impl From<AsSliceError> for ModelError {
    fn from(error: AsSliceError) -> Self {
        ModelError::Device(format!("cannot read an array back: {error}"))
    }
}
