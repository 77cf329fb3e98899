//! Builds the C++ half of the MLX bridge where mlx-sys has built MLX and reports its headers,
//! as on macOS. Elsewhere `cargo xtask setup` puts the bridge into libmlxc, and this script
//! checks that the prepared libraries fit this version.

#[path = "build/prepared.rs"]
mod prepared;

const BRIDGE: &str = "src/device/bridge/bridge.cpp";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/device/bridge/bridge.cpp");
    match std::env::var_os("DEP_MLX_INCLUDE") {
        Some(include) => build_bridge(&include),
        None => check_prepared(),
    }
}

fn build_bridge(include: &std::ffi::OsStr) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .warnings(false)
        .includes(std::env::split_paths(include))
        .file(BRIDGE);
    let defines = std::env::var("DEP_MLX_DEFINES").unwrap_or_default();
    for define in defines.split_whitespace() {
        build.define(define, None);
    }
    build.compile("motet_bridge");
    println!("cargo::rustc-cfg=motet_bridge");
}

/// Fails the build if the prepared libraries are for another version.
fn check_prepared() {
    let prepared = prepared::Prepared::read(|name| std::env::var(name).ok());
    if let Some(library) = prepared.library() {
        println!("cargo::rerun-if-changed={}", library.display());
    }
    let source = std::fs::read_to_string(BRIDGE).expect("the bridge is part of the crate");
    let needed = prepared::Needed {
        motet: env!("CARGO_PKG_VERSION"),
        bridge: prepared::bridge_version(&source)
            .expect("the bridge's source contains its version"),
        mlx_sys: prepared::MLX_SYS,
    };
    if let Some(mismatch) = prepared.mismatch(&needed, std::path::Path::exists) {
        println!("cargo::error={mismatch}");
    }
}
