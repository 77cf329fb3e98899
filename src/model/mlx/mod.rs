//! MLX.
