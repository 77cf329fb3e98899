//! Its build script ends a build where MLX has not been set up.
//!
//! It is a crate of its own, without dependencies, so that cargo runs the script among the first:
//! mlx-sys' own error comes after minutes, and says that CMake is missing.
