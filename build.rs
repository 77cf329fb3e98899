//! Builds the C++ half of the MLX bridge where mlx-sys has built MLX and says with what
//! headers, as on macOS. Where it has not, `cargo xtask setup` puts it into libmlxc.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/model/mlx/bridge/bridge.cpp");
    #[cfg(feature = "mlx")]
    if let Some(include) = std::env::var_os("DEP_MLX_INCLUDE") {
        build_bridge(&include);
    }
}

#[cfg(feature = "mlx")]
fn build_bridge(include: &std::ffi::OsStr) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .warnings(false)
        .includes(std::env::split_paths(include))
        .file("src/model/mlx/bridge/bridge.cpp");
    let defines = std::env::var("DEP_MLX_DEFINES").unwrap_or_default();
    for define in defines.split_whitespace() {
        build.define(define, None);
    }
    build.compile("motet_bridge");
    println!("cargo::rustc-cfg=motet_bridge");
}
