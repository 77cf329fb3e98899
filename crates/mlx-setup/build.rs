//! Ends the build where `cargo xtask setup` has not run.

#[path = "build/check.rs"]
mod check;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed={}", check::COMMAND);
    let missing = check::missing(env!("CARGO_PKG_VERSION"), |name| std::env::var(name).ok());
    if let Some(error) = missing {
        println!("cargo::error={error}");
    }
}
