//! Its build script ends a build where MLX has not been set up: mlx-sys' own error comes after
//! minutes, and says that CMake is missing.
//!
//! Cargo builds first what most crates depend on. This crate has no dependencies, and motet-sync,
//! on which all others stand, depends on it, so that the script is among the first.
