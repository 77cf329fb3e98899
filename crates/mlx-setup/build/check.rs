//! Whether a build needs MLX and does not have it. Pure, so that it is tested.

/// Every set-up writes it into cargo's configuration.
pub(crate) const COMMAND: &str = "MOTET_SETUP_COMMAND";

/// The error of a build on MLX without a set-up, on one line. On macOS mlx-sys builds MLX itself.
pub(crate) fn missing(version: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    let is_on_mlx = variable("CARGO_FEATURE_MLX").is_some();
    let is_macos = variable("CARGO_CFG_TARGET_OS").is_some_and(|system| system == "macos");
    if !is_on_mlx || is_macos || is_set(COMMAND) || is_set("DOCS_RS") {
        return None;
    }
    Some(format!(
        "MLX is not set up for this build. In a checkout of motet {version}, run `cargo xtask \
         serve --model MODEL`, which sets it up, builds and serves, or `cargo xtask setup` alone; \
         for a crate elsewhere, `cargo xtask setup --for FOLDER` with the crate's folder. If your \
         own configuration stands in for mlx-sys' build script, set {COMMAND} in its [env]"
    ))
}
