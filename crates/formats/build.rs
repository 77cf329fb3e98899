//! Chooses the instruction sets that kernels are compiled for.
//!
//! `MOTET_INSTRUCTION_SETS=native` leaves out those that this machine does not have, which
//! shortens the kernels' build. The program runs on other machines, but does not use
//! what only they have. The default, `all`, is for programs that are sent to other machines.
//! `avx2` leaves both out everywhere: it measures, on a newer machine, what an older one would run.

use std::env;

const VARIABLE: &str = "MOTET_INSTRUCTION_SETS";

/// The instruction sets that may be left out.
const OPTIONAL: [&str; 2] = ["avx512", "avx_vnni"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    // A build for another target says nothing about its machines.
    let is_for_here = env::var("TARGET") == env::var("HOST");
    let has: fn(&str) -> bool = match env::var(VARIABLE).as_deref() {
        Ok("native") if is_for_here => is_here,
        Err(_) | Ok("" | "all" | "native") => |_| true,
        Ok("avx2") => |_| false,
        Ok(other) => {
            println!("cargo::error={VARIABLE} is {other:?}; expected all, native or avx2");
            return;
        }
    };
    for name in OPTIONAL {
        println!("cargo::rustc-check-cfg=cfg(motet_{name})");
        if has(name) {
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
