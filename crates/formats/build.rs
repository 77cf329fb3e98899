//! Chooses the instruction sets that kernels are compiled for.
//!
//! `MOTET_INSTRUCTION_SETS=native` leaves out those that this machine does not have, which
//! shortens the kernels' build. The program runs on other machines, but does not use
//! what only they have. The default, `all`, is for programs that are sent to other machines.

use std::env;

const VARIABLE: &str = "MOTET_INSTRUCTION_SETS";

/// The instruction sets that may be left out.
const OPTIONAL: [&str; 2] = ["avx512", "avx_vnni"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let is_native = match env::var(VARIABLE).as_deref() {
        Err(_) | Ok("" | "all") => false,
        // A build for another target says nothing about its machines.
        Ok("native") => env::var("TARGET") == env::var("HOST"),
        Ok(other) => {
            println!("cargo::error={VARIABLE} is {other:?}; expected all or native");
            return;
        }
    };
    for name in OPTIONAL {
        println!("cargo::rustc-check-cfg=cfg(motet_{name})");
        if !is_native || is_here(name) {
            println!("cargo::rustc-cfg=motet_{name}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_here(name: &str) -> bool {
    match name {
        "avx512" => is_x86_feature_detected!("avx512f"),
        _ => is_x86_feature_detected!("avxvnni"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_here(_: &str) -> bool {
    false
}
